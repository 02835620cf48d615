"""Where a failed task of a lane waits, by its window; and the turns of a lane with a rate, to the ms."""

from __future__ import annotations

import pytest

from shardq.core.calls import consume, dispatch
from shardq.core.calls.consume import SettleRetry
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

FAR = int(FAR_MS)

LANE = "w/k/"

LATE_MS = 50
"""A turn that is late by no more is made up for."""

INTERVAL = 200
RATED = f"1:{INTERVAL}:wait"


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def window(text: str) -> State:
    return {"meta": meta(**({"keys/w": text} if text else {}))}


def waiting(*uniques: str) -> State:
    return {
        "task": dict.fromkeys((f"{LANE}{each}" for each in uniques), record("x")),
        "due": {f"{LANE}{each}": FAR + T - 9000 for each in uniques},
        "keys": {f"{LANE}{T - 9000:015}/{each}": 0 for each in uniques},
        "alarms": {LANE: T},
    }


def dispatched(shard: Shard, keys: ShardKeys) -> int:
    call = dispatch.dispatch(keys, EPOCH, ("w",), limit=1000, max_attempts=9)
    return shard.run(call.at(NOW)).moved


@pytest.mark.parametrize(
    ("text", "waits_at_front"),
    [("", True), ("1:0:wait", True), ("2:0:wait", False), ("3:0:wait", False), ("1:0:skip", False)],
)
def test_a_failed_task_is_at_the_front_where_its_lane_waits_for_it(
    shard: Shard, keys: ShardKeys, text: str, waits_at_front: bool
) -> None:
    id = f"{LANE}a"
    out = {"task": {id: record("x")}, "leased": {id: T + 9}, "lease": {id: "0:0::tok"}, "placed": {id: 0}}
    shard.seed(window(text) | out)
    shard.run(consume.settle(keys, EPOCH, [], [SettleRetry(id, "tok", 500, "boom", 9)]).at(NOW))
    state = shard.state()
    place = f"-{0:014}" if waits_at_front else f"{T + 500:015}"
    assert state["keys"] == {f"{LANE}{place}/a": 0}
    assert (state["due"], state["alarms"]) == ({id: FAR + T + 500}, {LANE: T + 500})


LAST_MS = 253402300799999
"""The end of the year 9999: it has the 15 digits that an entry has room for."""


def test_what_is_due_in_the_last_year_waits_for_it(shard: Shard, keys: ShardKeys) -> None:
    id = f"{LANE}a"
    shard.seed(waiting("a") | {"meta": meta(), "due": {id: FAR + LAST_MS}, "keys": {f"{LANE}{LAST_MS}/a": 0}})
    assert dispatched(shard, keys) == 0
    assert shard.state()["alarms"] == {LANE: LAST_MS}


def test_who_leaves_alone_has_no_number(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(window("1:0:wait") | waiting("a", "b"))
    assert dispatched(shard, keys) == 1
    state = shard.state()
    assert (state["ready/w"], state["placed"]) == ([f"{LANE}a"], {f"{LANE}a": 0})
    assert "rests" not in state
    assert "left" not in state["meta"]


def test_who_leaves_beside_others_has_the_next_number(shard: Shard, keys: ShardKeys) -> None:
    state = window("3:0:wait") | waiting("a", "b", "c")
    state["meta"]["left"] = "41"
    shard.seed(state)
    assert dispatched(shard, keys) == 3
    state = shard.state()
    assert (state["rests"], state["meta"]["left"]) == ({f"{LANE}b": -42, f"{LANE}c": -43}, "43")


def test_who_leaves_the_front_keeps_its_number(shard: Shard, keys: ShardKeys) -> None:
    state = window("1:0:wait") | waiting("a", "b")
    state["keys"] = {f"{LANE}-{7:014}/b": 0, f"{LANE}{T - 9000:015}/a": 0}
    state["meta"]["left"] = "41"
    shard.seed(state)
    assert dispatched(shard, keys) == 1
    state = shard.state()
    assert (state["ready/w"], state["rests"], state["meta"]["left"]) == ([f"{LANE}b"], {f"{LANE}b": -7}, "41")


@pytest.mark.parametrize(("late_ms", "made_up"), [(0, True), (LATE_MS, True), (LATE_MS + 1, False)])
def test_a_dispatch_makes_up_for_fifty_ms(shard: Shard, keys: ShardKeys, late_ms: int, made_up: bool) -> None:
    """Else turns go on from now."""
    last = T - INTERVAL - late_ms
    shard.seed(window(RATED) | waiting("a") | {"rests": {LANE: last}})
    assert dispatched(shard, keys) == 1
    assert shard.state()["rests"] == {LANE: last if made_up else T - INTERVAL}


@pytest.mark.parametrize(("late_ms", "made_up"), [(0, True), (LATE_MS, True), (LATE_MS + 1, False)])
def test_a_claim_makes_up_for_fifty_ms(shard: Shard, keys: ShardKeys, late_ms: int, made_up: bool) -> None:
    id = f"{LANE}a"
    last = T - INTERVAL - late_ms
    ready = {"task": {id: record("x")}, "ready/w": [id], "placed": {id: 0, f"!{id}": 0}, "rests": {LANE: last}}
    shard.seed(window(RATED) | ready)
    call = consume.claim(keys, EPOCH, {"w": 5}, max=5, lease_ms=1000, token="token").at(NOW)
    assert shard.run(call).ids == [id]
    state = shard.state()
    assert state["rests"] == {LANE: last + INTERVAL if made_up else T}
    assert state["placed"] == {id: 0}


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("interval", "most"), [("200.000000", 1), ("25.500000", 1), ("25.000000", 2), ("10.000000", 5)]
)
def test_so_many_of_a_lane_with_a_rate_are_ready(
    shard: Shard, keys: ShardKeys, interval: str, most: int, full: bool
) -> None:
    """As many as have their turns within fifty ms, and one at least."""
    ready = [f"{LANE}{n}" for n in range(most if full else most - 1)]
    state = window(f"9:{interval}:wait") | waiting("a", "b")
    if ready:
        state["ready/w"] = ready
        state["task"] |= dict.fromkeys(ready, record("x"))
        state["placed"] = {f"{mark}{id}": 0 for id in ready for mark in ("", "!")}
    state["rests"] = {LANE: T - (len(ready) + 1) * float(interval)}
    shard.seed(state)
    assert dispatched(shard, keys) == (0 if full else 1)
    assert "alarms" not in shard.state(), "until one is taken"


@pytest.mark.parametrize(("turn", "given"), [(T, 1), (T + 1, 0)])
def test_a_turn_comes_an_interval_after_the_last(shard: Shard, keys: ShardKeys, turn: int, given: int) -> None:
    shard.seed(window(RATED) | waiting("a") | {"rests": {LANE: turn - INTERVAL}})
    assert dispatched(shard, keys) == given
    if not given:
        assert shard.state()["alarms"] == {LANE: turn}
