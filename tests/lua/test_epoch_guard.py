"""The guard of all scripts on a shard, on the model: which callers may go on; a refused call writes nothing. And that
scripts go by the clock of a real server.
"""

from __future__ import annotations

import pytest

from shardq.core.calls.request import Behind, Missing, Stale
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Stamp
from tests.lua.modelled import ModelledShard
from tests.lua.samples import FULL, NUMBERS, on_a_shard
from tests.lua.shard import EPOCH, Shard
from tests.support.rows import each_row

OF_EACH_SCRIPT = each_row("number", NUMBERS)


@OF_EACH_SCRIPT
def test_a_shard_without_meta_is_left_alone(modelled: ModelledShard, keys: ShardKeys, number: int) -> None:
    call = on_a_shard(keys, EPOCH)[number]
    before = {name: value for name, value in FULL.items() if name != "meta"}
    modelled.seed(before)
    assert modelled.ask(call) == ["missing"]
    with pytest.raises(Missing):
        modelled.run(call)
    assert modelled.state() == before


@OF_EACH_SCRIPT
def test_a_meta_without_an_epoch_is_no_meta(modelled: ModelledShard, keys: ShardKeys, number: int) -> None:
    before = FULL | {"meta": {"wake_at": "5"}}
    modelled.seed(before)
    assert modelled.ask(on_a_shard(keys, EPOCH)[number]) == ["missing"]
    assert modelled.state() == before


@pytest.mark.parametrize(("epoch", "stored"), [("2:a:b", "3:b:b"), ("9:a:b", "10:b:b")])
@OF_EACH_SCRIPT
def test_an_older_epoch_is_stale(
    modelled: ModelledShard, keys: ShardKeys, number: int, epoch: str, stored: str
) -> None:
    refused(modelled, keys, number, epoch, stored, Stale)


@pytest.mark.parametrize(("epoch", "stored"), [("4:c:b", "3:a:b"), ("10:c:b", "9:a:b")])
@OF_EACH_SCRIPT
def test_a_shard_that_missed_a_change_is_behind(
    modelled: ModelledShard, keys: ShardKeys, number: int, epoch: str, stored: str
) -> None:
    refused(modelled, keys, number, epoch, stored, Behind)


@pytest.mark.parametrize(("epoch", "stored"), [("3:c:b", "3:a:b"), ("3:a:b", "4:c:b"), ("9:a:x", "3:a:b")])
@OF_EACH_SCRIPT
def test_another_change_of_the_epoch_and_another_engine_are_stale(
    modelled: ModelledShard, keys: ShardKeys, number: int, epoch: str, stored: str
) -> None:
    refused(modelled, keys, number, epoch, stored, Stale)


def refused(
    modelled: ModelledShard,
    keys: ShardKeys,
    number: int,
    epoch: str,
    stored: str,
    refusal: type[Stale] | type[Behind],
) -> None:
    """Nothing is written, and the answer says what the shard knows."""
    call = on_a_shard(keys, Stamp(epoch))[number]
    before = FULL | {"meta": {"epoch": stored}}
    modelled.seed(before)
    assert modelled.ask(call) == [refusal.__name__.lower(), stored]
    with pytest.raises(refusal) as caught:
        modelled.run(call)
    assert Stamp(stored) == getattr(caught.value, "stamp", None)
    assert modelled.state() == before


@OF_EACH_SCRIPT
def test_by_the_clock_of_the_server(shard: Shard, keys: ShardKeys, number: int) -> None:
    """Without an explicit now every script takes the server's own."""
    call = on_a_shard(keys, EPOCH)[number]
    words = list(call.words)
    words[1] = ""
    call.words = words
    shard.seed(FULL)
    assert shard.ask(call)[0] == "ok"
