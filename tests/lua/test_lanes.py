"""Lanes of tasks with keys: dispatch looks over those of a topic whose window has changed, and ends holds."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch, lane_control
from shardq.core.calls.consume import SettleHold
from shardq.core.calls.control import Copy, open_shard
from shardq.core.calls.dispatch import Dispatched
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.topology import Topology
from tests.lua.shard import EPOCH, NOW, OLDER, Shard, State, T, meta, record

LOOKED = 100
FAR = int(FAR_MS)


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def lane(n: int) -> str:
    return f"w/k{n:04}/"


HELD = lane(0)


def full(count: int) -> State:
    """So many lanes: of each one task is ready, and one waits."""
    waiting = [(f"{lane(n)}b", f"{lane(n)}{T:015}/b") for n in range(count)]
    ready = [f"{lane(n)}a" for n in range(count)]
    return {
        "meta": meta(),
        "task": dict.fromkeys([*ready, *(id for id, _ in waiting)], record("a")),
        "ready/w": ready,
        "placed": dict.fromkeys(ready, 0),
        "due": {id: FAR + T for id, _ in waiting},
        "keys": {entry: 0 for _, entry in waiting},
    }


def dispatched(keys: ShardKeys, *topics: str, limit: int = 1000) -> Call[Dispatched]:
    return dispatch.dispatch(keys, EPOCH, topics or ("w",), limit=limit, max_attempts=9).at(NOW)


def changed(window: str, **fields: str) -> dict[str, Any]:
    return {"meta": meta(**{"keys/w": window, "cursor/w": "", **fields}), "alarms": {"w/": 0}}


@pytest.mark.parametrize("count", [0, 1, LOOKED - 1, LOOKED, LOOKED + 1, 2 * LOOKED + 1])
def test_a_look_goes_on_from_its_cursor(shard: Shard, keys: ShardKeys, count: int) -> None:
    shard.seed(full(count) | changed("2:0:wait"))
    left = count
    while True:
        result = shard.run(dispatched(keys))
        assert result.moved == min(left, LOOKED)
        left -= result.moved
        if result.moved < LOOKED:
            break
        assert result.next_us == T * 1000, "it wants to go on at once"
        state = shard.state()
        assert (state["meta"]["cursor/w"], state["alarms"]) == (f"w/k{count - left - 1:04}0", {"w/": 0})
    state = shard.state()
    assert "cursor/w" not in state["meta"]
    assert "alarms" not in state
    assert result.next_us is None
    assert len(state.get("ready/w", ())) == len(set(state.get("ready/w", ()))) == 2 * count


def test_a_lane_that_is_due_gives_beside_a_look(shard: Shard, keys: ShardKeys) -> None:
    """Each lane is asked once, also one that is met by both."""
    state = full(LOOKED + 50) | changed("2:0:wait")
    state["alarms"] = {"w/": 0, lane(0): T, lane(LOOKED + 20): T}
    shard.seed(state)
    assert shard.run(dispatched(keys)).moved == LOOKED + 1
    assert shard.run(dispatched(keys)).moved == 49


@pytest.mark.parametrize("gate", ["closed", "shut"])
def test_a_look_passes_a_lane_that_moves(shard: Shard, keys: ShardKeys, gate: str) -> None:
    """Its tasks are for another shard to give, or not to be given yet."""
    moving = {"gates": {lane(1): f"{gate}:5"}}
    shard.seed(full(3) | changed("2:0:wait", since="5", numbers="1,2") | moving)
    assert shard.run(dispatched(keys)).moved == 2
    shard.run(dispatched(keys))
    state = shard.state()
    assert lane(1) not in state.get("alarms", {})
    assert f"{lane(1)}{T:015}/b" in state["keys"]


def test_a_look_waits_for_the_list_of_its_topic(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(full(3) | changed("2:0:wait"))
    before = shard.state()
    result = shard.run(dispatched(keys, "other"))
    assert (result.lacking, result.moved) == (("w",), 0)
    assert shard.state()["alarms"] == before["alarms"]
    assert shard.run(dispatched(keys)).moved == 3


def test_a_narrower_window_gives_nothing(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(full(LOOKED) | changed("1:0:skip"))
    assert shard.run(dispatched(keys)).moved == 0
    shard.run(dispatched(keys))
    assert "alarms" not in shard.state()


def test_what_failed_leaves_the_front_of_a_lane_that_does_not_wait(shard: Shard, keys: ShardKeys) -> None:
    later = T + 5000
    state: State = changed("1:0:skip") | {
        "task": dict.fromkeys([f"{lane(0)}a", f"{lane(0)}b"], record("a")),
        "due": {f"{lane(0)}a": FAR + later, f"{lane(0)}b": FAR + T},
        "keys": {f"{lane(0)}-{1:014}/a": 0, f"{lane(0)}{T:015}/b": 0},
    }
    shard.seed(state)
    shard.run(dispatched(keys))
    shard.run(dispatched(keys))
    state = shard.state()
    assert (state["ready/w"], state["keys"]) == ([f"{lane(0)}b"], {f"{lane(0)}{later:015}/a": 0})


def test_a_ready_task_that_has_no_place_is_given_under_a_lowered_limit(shard: Shard, keys: ShardKeys) -> None:
    """As after a write of another program: the claim was refused for ever."""
    id = f"{lane(0)}a"
    shard.seed({"meta": meta(**{"lowered/w": ""}), "task": {id: record("a")}, "ready/w": [id]})
    call = consume.claim(keys, EPOCH, {"w": 5}, max=5, lease_ms=1000, token="token").at(NOW)
    assert shard.run(call).ids == [id]


def test_an_entry_of_no_lane_stops_no_look(shard: Shard, keys: ShardKeys) -> None:
    state = full(3) | changed("2:0:wait")
    state["keys"] |= {f"w//{n}": 0 for n in range(40)}
    shard.seed(state)
    assert shard.run(dispatched(keys)).moved == 3
    assert "keys" not in shard.state()


@pytest.mark.parametrize("entry", ["", " ", "x", "nan", "-", f"{T}/b", f"{T:015}", "-a number of /b"])
def test_an_entry_that_tells_no_instant_goes_when_it_is_first(shard: Shard, keys: ShardKeys, entry: str) -> None:
    """Another program has written it: every dispatch ended at it, and so the shard gave nothing any more."""
    state = full(2) | {"alarms": {lane(0): T, lane(1): T}}
    del state["placed"], state["ready/w"]
    state["keys"] |= {f"{lane(0)}{entry}": 0}
    shard.seed(state)
    assert shard.run(dispatched(keys)).moved + shard.run(dispatched(keys)).moved == 2
    shard.do("DEL", keys.placed)
    shard.do("ZADD", keys.alarms, T, lane(0))
    shard.run(dispatched(keys))
    assert "keys" not in shard.state()


def test_a_lane_rings_for_what_stands_behind_an_entry_of_another_program(shard: Shard, keys: ShardKeys) -> None:
    id, later = f"{HELD}b", T + 9
    state: State = {"meta": meta(), "task": {id: record("b")}, "due": {id: FAR + later}, "alarms": {HELD: T}}
    shard.seed(state | {"keys": {f"{HELD}{T - 5:015}/theirs": 0, f"{HELD}{later:015}/b": 0}})
    assert shard.run(dispatched(keys)).moved == 0
    assert shard.state()["alarms"] == {HELD: later}


def test_a_task_that_its_lane_does_not_know_can_be_cancelled(shard: Shard, keys: ShardKeys) -> None:
    """As after a write of another program."""
    id = f"{HELD}a"
    shard.seed({"meta": meta(), "task": {id: record("a")}, "due": {id: FAR + T}})
    assert shard.run(by_id.cancel(keys, EPOCH, id).at(NOW)) == "cancelled"
    assert list(shard.state()) == ["meta"]


def test_the_place_of_a_revoked_lease_is_given_in_the_call_that_ends_it(shard: Shard, keys: ShardKeys) -> None:
    """Also where what is out was counted for all lanes at once."""
    state = full(0)
    tasks = {f"{lane(n)}b": f"{lane(n)}{T:015}/b" for n in range(4)}
    state |= {"task": dict.fromkeys(tasks, record("b")), "due": dict.fromkeys(tasks, FAR + T)}
    state |= {"keys": dict.fromkeys(tasks.values(), 0), "placed": {f"{lane(3)}a": 0}}
    shard.seed(state | {"alarms": {f"{lane(3)}a": T - 1, **{lane(n): T for n in range(4)}}})
    assert shard.run(dispatched(keys)).moved == 4
    assert shard.state()["placed"] == dict.fromkeys(tasks, 0)


@pytest.mark.parametrize("there", ["due", "dead", ""])
def test_the_mark_of_a_revoked_lease_ends_with_its_place_where_the_new_task_is_gone(
    shard: Shard, keys: ShardKeys, there: str
) -> None:
    id = f"{HELD}a"
    state: State = {"meta": meta(), "lease": {id: "0:0::~t"}, "placed": {id: 0}, "alarms": {id: T}}
    if there:
        state |= {"task": {id: record("a")}, there: {id: FAR + T if there == "due" else T}}
    shard.seed(state | ({"keys": {f"{HELD}{T:015}/a": 0}} if there == "due" else {}))
    shard.run(dispatched(keys))
    assert shard.state().get("lease") == ({id: "0:0::~t"} if there else None)


def opened(keys: ShardKeys, limit: str, since: Any = OLDER) -> Call[bool]:
    topology = Topology(epoch=3, word="v", engine="e", shards=1)
    return open_shard(keys, topology, Copy("{}", {"w": f'{{"limit":{limit}}}'.encode()}, since), word="a word")


@pytest.mark.parametrize(
    ("before", "limit", "looks"),
    [
        (None, '{"per_key":2}', True),
        ("2:0.000000:wait", '{"per_key":2}', False),
        ("2:0.000000:wait", '{"per_key":2,"per_key_rate":5}', True),
        ("2:0.000000:wait", '{"rate":5}', True),
        (None, '{"rate":5}', False),
    ],
)
def test_another_window_has_its_lanes_looked_over(
    shard: Shard, keys: ShardKeys, before: str | None, limit: str, looks: bool
) -> None:
    shard.seed({"meta": meta() | {"epoch": f"{OLDER}"} | ({"keys/w": before} if before else {})})
    with shard.listener(keys.bell) as bell:
        shard.run(opened(keys, limit))
        assert bool(bell.heard()) == looks
    state = shard.state()
    assert (state["meta"].get("cursor/w"), state.get("alarms")) == (("", {"w/": 0}) if looks else (None, None))
    # told again, it changes nothing
    shard.run(dispatched(keys))
    state = shard.state()
    shard.run(opened(keys, limit, EPOCH))
    assert shard.state() == state


def test_a_window_that_is_not_told_any_more(shard: Shard, keys: ShardKeys) -> None:
    """All settings are told, and those of a topic with a window are not among them."""
    shard.seed({"meta": meta(**{"keys/old": "5:0.000000:wait"}) | {"epoch": f"{OLDER}"}})
    shard.run(opened(keys, '{"rate":5}', ""))
    state = shard.state()
    assert "keys/old" not in state["meta"]
    assert state["alarms"] == {"old/": 0}


def on_hold(ends: int, asked: int) -> dict[str, Any]:
    return {"holds": {HELD: f"{ends}:{asked}"}, "alarms": {HELD: T}}


@pytest.mark.parametrize("waits", [0, 1])
def test_a_hold_that_is_over_goes_with_its_alarm(shard: Shard, keys: ShardKeys, waits: int) -> None:
    shard.seed(full(waits) | on_hold(T, 500))
    result = shard.run(dispatched(keys, "other"))
    assert (result.moved, result.lacking, result.next_us) == (0, (), None), "no list is asked for"
    state = shard.state()
    assert "holds" not in state
    assert "alarms" not in state, "what is out of it keeps it full"


def test_what_waited_for_a_hold_is_given_at_its_end(shard: Shard, keys: ShardKeys) -> None:
    state = full(1) | on_hold(T, 500)
    del state["ready/w"], state["placed"], state["task"][f"{HELD}a"]
    shard.seed(state)
    assert shard.run(dispatched(keys)).next_us == T * 1000
    assert shard.run(dispatched(keys)).moved == 1


@pytest.mark.parametrize("waits", [0, 1])
def test_a_hold_of_a_clock_that_went_back_counts_from_now_on(shard: Shard, keys: ShardKeys, waits: int) -> None:
    shard.seed(full(waits) | on_hold(T + 180_000_000, 700))
    assert shard.run(dispatched(keys)).next_us == (T + 700) * 1000
    state = shard.state()
    assert (state["holds"], state["alarms"]) == ({HELD: f"{T + 700}:700"}, {HELD: T + 700})


@pytest.mark.parametrize("waits", [0, 1])
@pytest.mark.parametrize("until", [-700, T + 700])
def test_a_hold_has_an_alarm(shard: Shard, keys: ShardKeys, waits: int, until: int) -> None:
    shard.seed(full(waits))
    shard.run(lane_control.hold(keys, EPOCH, HELD, until).at(NOW))
    state = shard.state()
    assert (state["holds"], state["alarms"]) == ({HELD: f"{T + 700}:700"}, {HELD: T + 700})
    shard.run(lane_control.hold(keys, EPOCH, HELD, "").at(NOW))
    state = shard.state()
    assert "holds" not in state
    assert "alarms" not in state


@pytest.mark.parametrize("held_ms", [0, 300, 900])
def test_the_longer_hold_stays(shard: Shard, keys: ShardKeys, held_ms: int) -> None:
    state = full(1) | (on_hold(T + held_ms, 5000) if held_ms else {})
    del state["ready/w"]
    id = f"{HELD}a"
    shard.seed(state | {"leased": {id: T + 9}, "lease": {id: "0:0::t"}})
    shard.run(consume.settle(keys, EPOCH, [], [SettleHold(id, "t", 700)]).at(NOW))
    state = shard.state()
    ends, asked = (900, 5000) if held_ms == 900 else (700, 700)
    assert state["holds"] == {HELD: f"{T + ends}:{asked}"}
    assert state["alarms"][HELD] <= T + ends


def test_what_is_not_a_hold_is_forgotten(shard: Shard, keys: ShardKeys) -> None:
    """Another program has written it."""
    shard.seed(full(1) | {"holds": {HELD: "for ever"}, "alarms": {HELD: T}})
    shard.run(dispatched(keys))
    assert "holds" not in shard.state()


@pytest.mark.parametrize("asked", [700, 10**9])
def test_a_closed_lane_tells_how_long_it_is_held(shard: Shard, keys: ShardKeys, asked: int) -> None:
    shard.seed({"meta": meta(since=3, numbers="1,2")} | on_hold(T + 90_000, asked))
    (told,) = shard.run(lane_control.close(keys, EPOCH, [HELD]).at(NOW))
    assert told.held == f"{T + min(90_000, asked)}"
    assert "alarms" not in shard.state()
