"""Lanes that move to another shard are closed where they leave, and shut where they go until they are opened: by close,
open_lanes and hold, and by all that brings something of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq.core.calls import by_id, lane_control, resharding
from shardq.core.calls.lane_control import FAR_MS, Closed, Place
from shardq.core.calls.request import Call, Word
from shardq.core.calls.resharding import MovingTask
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.shard import EPOCH, NOW, Case, Shard, State, T, meta, record

FAR = int(FAR_MS)
LANE, OTHER = "w/k/", "w/l/"
A = record("a")
DUE = T - 9

MOVING = meta(since=5, numbers="1,2")
RATED = MOVING | {"keys/w": "1:200:wait"}


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def waiting(*lanes: str) -> State:
    """One task of each lane waits."""
    lanes = lanes or (LANE,)
    return {
        "meta": MOVING,
        "task": {f"{lane}a": A for lane in lanes},
        "due": {f"{lane}a": FAR + DUE for lane in lanes},
        "keys": {f"{lane}{DUE:015}/a": 0 for lane in lanes},
    }


def gated(gate: str, **others: Any) -> State:
    return waiting() | {"gates": {LANE: gate}} | others


def woken(at: int) -> State:
    """What is different when the poller is told of an instant; of one that is past, to come at once."""
    return {"meta": MOVING | {"wake_at": f"{max(at, T)}"}}


# ---- close


def closed(*lanes: str) -> Callable[[ShardKeys], Call[Any]]:
    return lambda keys: lane_control.close(keys, EPOCH, lanes or (LANE,)).at(NOW)


def told(out: int = 0, waits: int = 1, turn: str = "", held: str = "") -> list[Word]:
    return ["ok", LANE, out, waits, turn, held]


CLOSE = {
    f"a lane of which {gate or 'nothing'} was said": Case(
        closed(),
        told(),
        waiting() | {"alarms": {LANE: T}} | ({"gates": {LANE: gate}} if gate else {}),
        {"alarms": None, "gates": {LANE: "closed:5"}},
    )
    for gate in ("", "open:5", "shut:5", "closed:4", "of another program")
} | {
    "a lane that is closed already": Case(closed(), told(), gated("closed:5")),
    "one lane of several": Case(
        closed(),
        told(),
        waiting(LANE, OTHER) | {"alarms": {LANE: T, OTHER: T}, "gates": {OTHER: "open:5"}},
        {"alarms": {OTHER: T}, "gates": {LANE: "closed:5", OTHER: "open:5"}},
    ),
    "it tells what is out, and of its last turn and its hold": Case(
        closed(),
        told(out=2, waits=0, turn=f"{T - 50}.25", held=f"{T + 700}"),
        {
            "meta": RATED,
            "placed": {f"{LANE}a": 0, f"{LANE}b": 0, f"{OTHER}a": 0, f"!{LANE}a": 0},
            "rests": {LANE: T - 50 + 0.25, OTHER: T},
            "holds": {LANE: f"{T + 700}:900", OTHER: f"{T + 800}:900"},
        },
        {"gates": {LANE: "closed:5"}},
    ),
    "without a change that is known": Case(
        closed(), told(), waiting() | {"meta": meta()}, {"gates": {LANE: "closed:0"}}
    ),
}  # fmt: skip


# ---- open_lanes


def opened(turn: float | str = "", held: float | str = "", lane: str = LANE) -> Callable[[ShardKeys], Call[Any]]:
    some = [Closed(lane, 0, False, f"{turn}", f"{held}")]
    return lambda keys: lane_control.open_lanes(keys, EPOCH, some).at(NOW)


OPEN = {
    f"a lane of which {gate} was said gives": Case(
        opened(), ["ok"], gated(gate), {"gates": {LANE: "open:5"}, "alarms": {LANE: DUE}} | woken(DUE)
    )
    for gate in ("shut:5", "closed:5", "open:4")
} | {
    "a hold comes along": Case(
        opened(held=T + 700),
        ["ok"],
        gated("shut:5", holds={OTHER: f"{T + 1}:1"}),
        {
            "gates": {LANE: "open:5"},
            "holds": {LANE: f"{T + 700}:700", OTHER: f"{T + 1}:1"},
            "alarms": {LANE: T + 700},
        }
        | woken(T + 700),
    ),
    "a hold that is here is the newer one": Case(
        opened(held=T + 700),
        ["ok"],
        gated("shut:5", holds={LANE: f"{T + 900}:900"}),
        {"gates": {LANE: "open:5"}, "alarms": {LANE: T + 900}} | woken(T + 900),
    ),
    "a lane that is open stays as it is": Case(
        opened(turn=T, held=T + 700),
        ["ok"],
        gated("open:5", meta=RATED),
        {"alarms": {LANE: DUE}, "meta": RATED | {"wake_at": f"{T}"}},
    ),
}  # fmt: skip

TURNS: dict[str, tuple[State, float | str, float | None, float]] = {
    "none was told": ({}, "", None, DUE),
    "the first of the shard": ({}, T - 50, T - 50, T + 150),
    "beside another lane": ({OTHER: T}, T - 50, T - 50, T + 150),
    "a part of a ms": ({}, T - 49.75, T - 49.75, T + 150.25),
    "it had a later one here": ({LANE: T - 20}, T - 50, T - 20, T + 180),
    "it had an earlier one here": ({LANE: T - 80}, T - 50, T - 50, T + 150),
}


@pytest.mark.parametrize("case", TURNS)
def test_the_last_turn_of_a_lane_comes_along(shard: Shard, keys: ShardKeys, case: str) -> None:
    """The next one comes an interval after it."""
    before, turn, last, alarm = TURNS[case]
    shard.seed(gated("shut:5", meta=RATED) | ({"rests": before} if before else {}))
    assert shard.ask(opened(turn=turn)(keys)) == ["ok"]
    state = shard.state()
    assert (state.get("rests", {}).get(LANE), state["alarms"]) == (last, {LANE: alarm})


# ---- what shuts a lane


def parcel(id: str, kind: str) -> MovingTask:
    score = DUE if kind == "dead" else FAR + DUE
    return MovingTask(id, f"n2|1|{kind}|{score}|0|0|{A}".encode())


BRINGS: dict[str, Callable[[ShardKeys], Call[Any]]] = {
    "push": lambda keys: by_id.push(keys, EPOCH, [f"{LANE}b", f"{DUE} ", A]).at(NOW),
    "push_unique": lambda keys: by_id.push_unique(keys, EPOCH, [f"{LANE}b", f"{DUE} ", A, "keep", 0]).at(NOW),
    "put": lambda keys: resharding.put(keys, EPOCH, [parcel(f"{LANE}b", "due")]).at(NOW),
    "put of what is dead": lambda keys: resharding.put(keys, EPOCH, [parcel(f"{LANE}b", "dead")]).at(NOW),
    "hold": lambda keys: lane_control.shut(keys, EPOCH, LANE).at(NOW),
}

HOLD = f"{T + 700}:700"
SHUT = "shut:5", None
GATES = {"": SHUT, "shut:4": SHUT, "open:4": SHUT, "shut:5": ("shut:5", HOLD), "closed:5": ("closed:5", HOLD)}


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("call", BRINGS)
def test_what_comes_of_a_lane_that_moves_shuts_it(shard: Shard, keys: ShardKeys, call: str, gate: str) -> None:
    """Once: it gives nothing until it is opened. A hold that was here is over, and one that was told since is not."""
    shard.seed(
        {"meta": MOVING, "staged": {f"{LANE}b|n2": ""}, "gates": {OTHER: "open:5"} | ({LANE: gate} if gate else {})}
        | {"holds": {LANE: HOLD, OTHER: HOLD}}
    )
    shard.run(BRINGS[call](keys))
    state = shard.state()
    assert "alarms" not in state
    assert (state["gates"].pop(LANE), state["holds"].get(LANE)) == GATES[gate]
    assert (state["gates"], state["holds"][OTHER]) == ({OTHER: "open:5"}, HOLD)


@pytest.mark.parametrize("call", BRINGS)
def test_an_open_lane_stays_open(shard: Shard, keys: ShardKeys, call: str) -> None:
    shard.seed({"meta": MOVING, "staged": {f"{LANE}b|n2": ""}, "gates": {LANE: "open:5"}, "holds": {LANE: HOLD}})
    shard.run(BRINGS[call](keys))
    state = shard.state()
    assert (state["gates"], state["holds"]) == ({LANE: "open:5"}, {LANE: HOLD})
    assert state.get("alarms") == (None if call.endswith("dead") else {LANE: T + 700})


# ---- hold


def held(until: Word, place: Place = "") -> Callable[[ShardKeys], Call[Any]]:
    return lambda keys: lane_control.hold(keys, EPOCH, LANE, until, place).at(NOW)


LATER = f"{T + 700}:700"

HELD = {
    "where it goes, before anything of it is there": Case(
        held(-700, "new"), ["ok", 0], {"meta": MOVING}, {"gates": {LANE: "shut:5"}, "holds": {LANE: LATER}}
    ),
    "where it goes, instead of an earlier one": Case(
        held(-700, "new"),
        ["ok", 0],
        gated("shut:5", holds={LANE: f"{T + 9}:90"}),
        {"holds": {LANE: LATER}},
    ),
    "lifted where it goes: that of elsewhere is over, too": Case(
        held("", "new"), ["ok", 0], gated("shut:5", holds={LANE: LATER}), {"holds": {LANE: "0:0"}}
    ),
    "lifted where it is open": Case(
        held("", "new"),
        ["ok", 1],
        gated("open:5", holds={LANE: LATER}, alarms={LANE: T + 700}),
        {"holds": None, "alarms": {LANE: DUE}} | woken(DUE),
    ),
    "where it leaves, and something is left": Case(
        held(-700, "old"), ["ok", 0], gated("closed:5"), {"holds": {LANE: LATER}}
    ),
    "where it leaves, and nothing is left": Case(
        held(-700, "old"),
        ["ok", 0],
        {"meta": MOVING, "holds": {LANE: f"{T + 9}:90"}},
        {"holds": None, "gates": {LANE: "closed:5"}},
    ),
    "until an instant that is past": Case(
        held(T - 5),
        ["ok", 0],
        waiting(),
        {"holds": {LANE: f"{T - 5}:0"}, "alarms": {LANE: T - 5}} | woken(T - 5),
    ),
}  # fmt: skip


# ---- take


def taken() -> Callable[[ShardKeys], Call[Any]]:
    return lambda keys: resharding.take(keys, EPOCH, "n2", 1, [f"{LANE}a"]).at(NOW)


PARCEL = f"n2|1|due|{FAR + DUE}|0|0|{A}"

TAKE = {
    "what waits in a closed lane": Case(
        taken(),
        ["ok", f"{LANE}a", PARCEL],
        gated("closed:5"),
        {"task": None, "due": None, "keys": None, "moved": {f"{LANE}a": PARCEL}, "meta": MOVING | {"moved": "1"}},
    )
} | {
    f"nothing where it is {gate}, by {numbers}": Case(
        taken(), ["ok"], gated(gate, meta=meta(since=5, **({"numbers": numbers} if numbers else {})))
    )
    for gate, numbers in (
        ("open:5", "1,2"),
        ("shut:5", "1,2"),
        ("closed:4", "1,2"),
        ("of another program", "1,2"),
        ("closed:5", "2"),
        ("closed:5", ""),
    )
}  # fmt: skip

CASES = {
    f"{script}: {name}": case
    for script, cases in (("close", CLOSE), ("open_lanes", OPEN), ("hold", HELD), ("take", TAKE))
    for name, case in cases.items()
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_call(shard: Shard, keys: ShardKeys, case: Case) -> None:
    case.check(shard, keys)
