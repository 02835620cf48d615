"""check, and restore, of ids whose record and place do not fit together."""

from __future__ import annotations

import pytest

from shardq.core.calls import observe
from shardq.core.calls.observe import Checked, Fault
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

A, ID, LANE = record("a"), "m/k/1", "m/k/"
WAITS_AT = 4_000_000_000_000_000 + T
STANDS, IN_FRONT = f"{LANE}{T:015d}/1", f"{LANE}-{7:014}/1"

STATES: dict[str, tuple[State, Fault | None]] = {
    "gone": ({}, None),
    "ready": ({"task": {ID: A}, "ready/m": [ID]}, None),
    "leased": ({"task": {ID: A}, "leased": {ID: T}}, None),
    "dead": ({"task": {ID: A}, "dead": {ID: T}}, None),
    "a ghost alone": ({"ready/m": [ID], "ghost": {ID: "1"}}, None),
    "ready behind a ghost": ({"task": {ID: A}, "ready/m": [ID, ID], "ghost": {ID: "1"}}, None),
    "waiting": ({"task": {ID: A}, "due": {ID: WAITS_AT}, "keys": {STANDS: 0}}, None),
    "waiting in front": ({"task": {ID: A}, "due": {ID: WAITS_AT}, "keys": {IN_FRONT: 0}}, None),
    "passing a clock": ({"task": {ID: A}, "due": {ID: T}}, None),
    "in no list": ({"task": {ID: A}}, "lost"),
    "behind its ghost": ({"task": {ID: A}, "ready/m": [ID], "ghost": {ID: "1"}}, "lost"),
    "in due without a record": ({"due": {ID: WAITS_AT}}, "empty"),
    "leased without a record": ({"leased": {ID: T}}, "empty"),
    "dead without a record": ({"dead": {ID: T}}, "empty"),
    "in no lane": ({"task": {ID: A}, "due": {ID: WAITS_AT}}, "unlaned"),
    "elsewhere in its lane": ({"task": {ID: A}, "due": {ID: WAITS_AT + 1}, "keys": {STANDS: 0}}, "unlaned"),
}


@pytest.mark.parametrize(("state", "fault"), STATES.values(), ids=STATES)
def test_what_is_wrong(shard: Shard, keys: ShardKeys, state: State, fault: Fault | None) -> None:
    shard.seed({"meta": meta()} | {name: value for name, value in state.items() if name != "keys"})
    for entry in state.get("keys", ()):
        shard.do("ZADD", keys.keys, 0, entry)
    before = shard.state()
    ids = ["m/k/0", ID, "m/k/2"]
    assert shard.run(observe.check(keys, EPOCH, ids).at(NOW)) == Checked(3, {ID: fault} if fault else {})
    assert shard.state() == before


def test_long_lists_are_searched_by_and_by(shard: Shard, keys: ShardKeys) -> None:
    """A call ends after so many entries, and the caller goes on behind what was looked at."""
    ids = [f"m/{n}" for n in range(4)]
    listed = [f"m/other-{n}" for n in range(100_000)]
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, A), "ready/m": [*listed, ids[0], ids[2]]})
    assert shard.run(observe.check(keys, EPOCH, ids).at(NOW)) == Checked(2, {ids[1]: "lost"})
    assert shard.run(observe.check(keys, EPOCH, ids[2:]).at(NOW)) == Checked(2, {ids[3]: "lost"})
    shard.do("RPUSH", keys.ready("m"), *listed)
    assert shard.run(observe.check(keys, EPOCH, ids).at(NOW)) == Checked(4, {})
