"""A process that learns of a resize while it packs a push decides the whole push by one topology.

Its dispatcher, its consumers and its producers share the topology, and any of them may learn a newer one at any moment,
also between two reads of another thread.
"""

from __future__ import annotations

import pytest

from shardq import Engine
from shardq.core.calls.request import Word
from shardq.core.drivers.sync import Driver
from shardq.core.model.record import RAW, codec_named, encode_record
from shardq.core.operation import run
from shardq.core.producer import pushing
from shardq.core.producer.packing import Entries, Packer
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration, moving_ids
from tests.support.learning import LearningCache
from tests.support.states import FAR_S

MORE = 7

LATER_MS = 4_000_000_000_000

GLANCES = 8
"""More than any push takes to be on its way."""


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("own", [False, True])
def test_a_push(engine: Engine, driver: Driver, migration: Migration, own: bool, many: bool) -> None:
    """Of an id of the caller's that is in an earlier shard, and of one of the engine's."""
    packer = Packer(codec_named("raw"), max_payload=1 << 20)
    ids = moving_ids(SHARDS, MORE, GLANCES)
    if own:
        for id in ids:
            engine.push("x", id=id, delay=FAR_S)
    before = engine.topology
    engine.resize(MORE)
    for counts_by_shard, id in enumerate(ids):
        words: list[Word] = [id, LATER_MS, encode_record(RAW, b"x")]
        entries = Entries([id], [], [*words, "keep", 0]) if own else Entries([id], words, [])
        cache = LearningCache(engine.name, before, engine.topology, counts_by_shard)
        if many:
            (receipt,) = run(driver, pushing.push(cache, packer, entries))
        else:
            receipt = run(driver, pushing.push_one(cache, packer, entries))
        assert receipt.outcome == ("kept" if own else "pushed")
        assert migration.places(id, MORE) == [cache.keys((before if own else engine.topology).shard_of(id))]
