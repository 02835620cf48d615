"""Calls that do several things at once, and a key of another type that only the last of them meets: nothing is written.

Calls that do one thing are in ``test_commands_refused_halfway``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from shardq.core.calls import by_id, consume, resharding, transfer
from shardq.core.calls.consume import SettleAck, SettleBury, SettleGiveBack, SettleRetry
from shardq.core.calls.request import Call, Word
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.modelled import ModelledShard
from tests.lua.samples import PARCELS
from tests.lua.shard import EPOCH, NOW, State, T, meta, record

A = record("a")

SETTLED: State = {
    "meta": meta(),
    "task": dict.fromkeys("abcd", A),
    "leased": dict.fromkeys("abcd", T + 50),
    "lease": dict.fromkeys("abcd", "0:0::tok"),
}

PUSHED: State = {
    "meta": meta(),
    "task": dict.fromkeys(("due", "ready", "leased", "dead"), A),
    "due": {"due": T + 50},
    "ready/": ["ready"],
    "leased": {"leased": T + 50},
    "lease": {"leased": "0:0::tok"},
    "dead": {"dead": T},
    "why": {"dead": "boom"},
    "seen": {"seen": T + 500},
}

PUT: State = {"meta": meta(), "staged": {"x|n2": "", "y|n2": ""}}


def push(keys: ShardKeys, *ids: str) -> Call[Any]:
    """``seen`` is kept, and remembered for resends."""
    words: list[Word] = []
    for id in ids:
        words += [id, -9, A, *(("keep", "50-50") if id == "seen" else ("replace", 50))]
    return by_id.push_unique(keys, EPOCH, words).at(NOW)


def adopt(keys: ShardKeys, *ids: str) -> Call[Any]:
    words: list[Word] = []
    for id in ids:
        words += [f"{id}!", -9, A, *(("dead", "1:0::", "boom") if id == "dead" else ("due", "1:0::", ""))]
    return transfer.adopt(keys, EPOCH, words, once="7-50").at(NOW)


CALLS: dict[str, tuple[State, Callable[[ShardKeys], Call[Any]]]] = {
    "settle": (
        SETTLED,
        lambda keys: consume.settle(
            keys,
            EPOCH,
            [SettleAck("a", "tok")],
            [
                SettleRetry("b", "tok", 50, "boom", 9),
                SettleGiveBack("c", "tok"),
                SettleBury("d", "tok", "boom"),
            ],
        ).at(NOW),
    ),
    "push_unique": (PUSHED, lambda keys: push(keys, "seen", "new", "due", "ready", "leased", "dead")),
    "push_unique, in another order": (PUSHED, lambda keys: push(keys, "due", "dead", "leased", "ready", "new", "seen")),
    "adopt": (PUSHED, lambda keys: adopt(keys, "seen", "new", "dead")),
    "put": (PUT, lambda keys: resharding.put(keys, EPOCH, PARCELS).at(NOW)),
}

BROKEN = {
    f"{name}: {key.rpartition('}:')[2]}": (before, call, number)
    for name, (before, call) in CALLS.items()
    for number, key in enumerate(call(shard_keys("x", 0)).keys)
}


LANES = ("keys", "placed", "alarms", "rests", "holds", "gates")


def of_lanes(state: State) -> State:
    """The same with ids of a key, which are out."""
    with_keys: State = {
        name: [f"w/k/{id}" for id in found]
        if isinstance(found, list)
        else {f"w/k/{id}": each for id, each in found.items()}
        for name, found in state.items()
        if name != "meta"
    }
    return with_keys | {"meta": state["meta"], "placed": dict.fromkeys(with_keys["leased"], 0)}


@pytest.mark.parametrize("broken", LANES)
def test_nothing_is_written_of_lanes(modelled: ModelledShard, name: str, broken: str) -> None:
    keys = shard_keys(name, 1, keyed=True)
    acks, others = [SettleAck("w/k/a", "tok")], [SettleRetry("w/k/b", "tok", 50, "boom", 9)]
    modelled.seed(of_lanes(SETTLED))
    modelled.do("DEL", getattr(keys, broken))
    modelled.do("SET", getattr(keys, broken), "not ours")
    before = modelled.state()
    error = modelled.refusal(consume.settle(keys, EPOCH, acks, others).at(NOW))
    assert "WRONGTYPE" in error
    assert modelled.state() == before


@pytest.mark.parametrize(("before", "call", "number"), BROKEN.values(), ids=BROKEN)
def test_nothing_is_written(
    modelled: ModelledShard, keys: ShardKeys, before: State, call: Callable[[ShardKeys], Call[Any]], number: int
) -> None:
    asked = call(keys)
    modelled.seed(before)
    modelled.do("DEL", asked.keys[number])
    modelled.do("SET", asked.keys[number], "not ours")
    broken = modelled.state()
    error = modelled.refusal(asked)
    assert re.search("^$|WRONGTYPE", error)
    if error:
        assert modelled.state() == broken
