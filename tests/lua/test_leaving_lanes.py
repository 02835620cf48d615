"""Tasks with a key leave their lanes for the ready list: which places, marks, numbers and turns are noted then, and
when the next of each lane can leave.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shardq.core.calls import consume, dispatch, lane_control
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.dispatch import Dispatched
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.errors import ServerFault
from tests.lua.inner import Watched, lines
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

FAR = int(FAR_MS)
K, L, M = "w/k/", "w/l/", "w/m/"
DUE = T - 9000

FREE, RATED = "3:0:wait", "3:25.000000:wait"


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def waiting(window: str, *ids: str, rests: Mapping[str, float] | None = None, **fields: object) -> State:
    """Tasks that are due, in a topic with this window. All their lanes have an alarm by now."""
    lanes = {id.rpartition("/")[0] + "/" for id in ids}
    state: State = {
        "meta": meta(**({"keys/w": window} if window else {}) | fields),
        "task": dict.fromkeys(ids, record("x")),
        "due": dict.fromkeys(ids, FAR + DUE),
        "keys": {f"{id.rpartition('/')[0]}/{DUE:015}/{id.rpartition('/')[2]}": 0 for id in ids},
        "alarms": dict.fromkeys(lanes, T),
    }
    return state | ({"rests": dict(rests)} if rests else {})


def dispatching(keys: ShardKeys) -> Call[Dispatched]:
    return dispatch.dispatch(keys, EPOCH, ("w",), limit=1000, max_attempts=9).at(NOW)


@pytest.mark.parametrize(("number", "rests"), [(0, {}), (1, {f"{K}b": -1}), (7, {f"{K}b": -7})])
def test_from_the_front_a_task_leaves_under_the_number_that_it_had(
    shard: Shard, keys: ShardKeys, number: int, rests: dict[str, int]
) -> None:
    """0 is none."""
    state = waiting("1:0:wait", f"{K}a", f"{K}b", left="41")
    del state["keys"][f"{K}{DUE:015}/b"]
    state["keys"][f"{K}-{number:014}/b"] = 0
    shard.seed(state)
    assert shard.run(dispatching(keys)).moved == 1
    state = shard.state()
    assert (state["ready/w"], state.get("rests", {}), state["meta"]["left"]) == ([f"{K}b"], rests, "41")


def test_lanes_with_a_rate_leave_marks_and_turns(shard: Shard, keys: ShardKeys) -> None:
    """Forty a second, so two of a lane may be ready. One lane is late by a turn, one had none, and one has to wait."""
    ids = [f"{K}a", f"{K}b", f"{K}c", f"{L}a", f"{L}b", f"{M}a"]
    state = waiting("9:25.000000:wait", *ids, rests={K: T - 50, M: T - 10})
    state["task"]["w/plain"], state["due"]["w/plain"] = record("x"), T - 5
    shard.seed(state)
    assert shard.run(dispatching(keys)).moved == 4
    state = shard.state()
    left = [f"{K}a", f"{K}b", f"{L}a"]
    assert state["ready/w"] == ["w/plain", *left]
    assert state["placed"] == {f"{mark}{id}": 0 for id in left for mark in ("", "!")}
    assert state["rests"] == {K: T - 50, L: T - 25, M: T - 10, f"{K}b": -1}
    assert state["alarms"] == {L: T + 25, M: T + 15}, "and of the first once one of it is taken"


@pytest.mark.parametrize("interval", [25, 1, 0.5])
def test_the_first_turn_of_a_shard(shard: Shard, keys: ShardKeys, interval: float) -> None:
    shard.seed(waiting(f"9:{interval:.6f}:wait", f"{K}a", f"{K}b"))
    assert shard.run(dispatching(keys)).moved == 1
    state = shard.state()
    assert state["placed"] == {f"{K}a": 0, f"!{K}a": 0}
    assert (state["rests"], state["alarms"]) == ({K: T - interval}, {K: T + interval})


@pytest.mark.parametrize("count", [3, 4, 9])
def test_of_many_lanes_that_are_full_now_none_has_an_alarm(shard: Shard, keys: ShardKeys, count: int) -> None:
    """What is out of four or more is counted by one call, and then anew."""
    lanes = [f"w/{n}/" for n in range(count)]
    shard.seed(waiting("1:25.000000:wait", *(f"{lane}{n}" for lane in lanes for n in range(2))))
    assert shard.run(dispatching(keys)).moved == count
    assert "alarms" not in shard.state()


@pytest.mark.parametrize("ids", [("k/a", "k/b", "k/c", "l/a"), ("k/a",), ()])
@pytest.mark.parametrize("plain", [0, 1, 2])
@pytest.mark.parametrize("window", [FREE, RATED])
def test_a_list_that_refuses_leaves_all_as_it_was(
    shard: Shard, keys: ShardKeys, ids: tuple[str, ...], plain: int, window: str
) -> None:
    """At the front of its lane, in its order, due now; without a place, a mark or a number."""
    keyed = [f"w/{id}" for id in ids]
    turns = dict.fromkeys((K, L), T - 50) if window == RATED else {}
    state = waiting(window, *keyed, left="41", rests=turns)
    state["due"] |= {f"w/{n}": T - 5 for n in range(plain)}
    shard.seed(state)
    shard.do("SET", keys.ready("w"), "of another program")
    if keyed or plain:
        with pytest.raises(ServerFault, match="WRONGTYPE"):
            shard.run(dispatching(keys))
    state = shard.state()
    # with the rate two of a lane are given at once
    given = keyed[: 2 if turns else 3] + keyed[3:]
    numbers = {id: 42 + n for n, id in enumerate(given[1:3]) if id.startswith(K)}
    assert state.get("due", {}) == {f"w/{n}": T for n in range(plain)} | {
        id: FAR + (T if id in given else DUE) for id in keyed
    }
    assert set(state.get("keys", ())) == {
        f"{id[:4]}-{numbers.get(id, 0):014}{id[3:]}" if id in given else f"{id[:4]}{DUE:015}{id[3:]}" for id in keyed
    }
    assert "placed" not in state
    assert state.get("rests", {}) == turns
    assert state.get("alarms", {}) == {f"{id[:4]}": T for id in keyed}


# ---- the turns of a lane with a rate

AHEAD = {
    ("1:200.000000", 0): True,
    ("1:200.000000", 1): False,
    ("3:200.000000", 400): True,
    ("3:200.000000", 401): False,
    ("1:25.000000", 25): True,
    ("1:25.000000", 26): False,
    ("5:25.000000", 100): True,
    ("5:25.000000", 101): False,
    ("2:10.000000", 40): True,
    ("2:10.000000", 41): False,
    ("1:1.000000", 0): True,
    ("1:0.500000", 0): True,
}


@pytest.mark.parametrize(("window", "ahead"), AHEAD)
def test_a_last_turn_that_no_rate_can_have_given_is_of_a_clock_that_went_back(
    shard: Shard, keys: ShardKeys, window: str, ahead: int
) -> None:
    """As many turns are taken ahead as tasks of a lane may be out, or be ready. Beyond that the next is now."""
    shard.seed(waiting(f"{window}:wait", f"{K}a", rests={K: T + ahead}))
    shard.run(lane_control.lanes(keys, EPOCH, "", count=9).at(NOW))
    interval = float(window.partition(":")[2])
    assert shard.state()["alarms"] == {K: T + ahead + interval if AHEAD[window, ahead] else T}


# ---- what keeps a lane


def leased(*ids: str) -> State:
    return {
        "leased": dict.fromkeys(ids, T + 9),
        "lease": dict.fromkeys(ids, "0:0::t"),
        "placed": dict.fromkeys(ids, 0),
    }


def handed(keys: ShardKeys) -> Call[Any]:
    return consume.settle(keys, EPOCH, [SettleAck(f"{K}a", "t")], handing=("w",)).at(NOW)


def test_a_word_that_is_no_hold_keeps_nothing(shard: Shard, keys: ShardKeys) -> None:
    """Another program's."""
    shard.seed(waiting("", f"{K}b") | leased(f"{K}a") | {"holds": {K: "for ever"}})
    shard.run(handed(keys))
    assert shard.state()["ready/w"] == [f"{K}b"]


def test_a_hold_of_a_key_does_not_meet_what_has_none(shard: Shard, keys: ShardKeys) -> None:
    ids = ["w/a", "w/b"]
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, record("x")), "ready/w": ids, "holds": {K: f"{T + 9}:9"}})
    call = consume.claim(keys, EPOCH, {"w": 5}, max=5, lease_ms=1000, token="token").at(NOW)
    assert shard.run(call).ids == ids


READ: dict[str, tuple[str, State, list[str]]] = {
    "turns of a topic with a rate": ("1:200.000000:wait", {"rests": {L: T - 9}}, ["ZMSCORE rests w/k/"]),
    "no turns of one without": ("", {"rests": {L: T - 9}}, []),
    "no turns where there are none": ("1:200.000000:wait", {}, []),
    "holds": ("", {"holds": {L: f"{T + 9}:9"}}, ["HGETALL holds"]),
    "gates": ("", {"gates": {L: "open:5"}}, ["HGETALL gates"]),
    "each once": (
        "",
        {"holds": {L: f"{T + 9}:9"}, "gates": {K: "open:5"}},
        ["HGETALL holds", "HGETALL gates"],
    ),
    "a hold of many": ("", {"holds": {f"w/{n}/": f"{T + 9}:9" for n in range(9)}}, ["HMGET holds w/k/"]),
}


@pytest.mark.parametrize("case", READ)
def test_what_keeps_lanes_is_read_where_the_shard_has_any(keys: ShardKeys, case: str) -> None:
    window, others, read = READ[case]
    watched = Watched(keys, waiting(window, f"{K}a") | others)
    made = lines(watched.made(lane_control.lanes(keys, EPOCH, "", count=9).at(NOW)))
    kept = ("ZMSCORE rests", "HMGET holds", "HGETALL holds", "HGETALL gates")
    looks = [line for line in made if line.startswith(kept)]
    assert looks == read
