"""settle hands the place that it frees to the next task of the key, where dispatch would give that now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from shardq.core.calls import consume, dispatch
from shardq.core.calls.consume import MAX_HANDING, SettleAck, SettleBury, SettleGiveBack, SettleRetry
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.inner import Watched, lines
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record, text

FAR = int(FAR_MS)
LANE = "w/k/"
A, B, C = f"{LANE}a", f"{LANE}b", f"{LANE}c"


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def entry(id: str, at: int | str) -> str:
    lane, _, unique = id.rpartition("/")
    return f"{lane}/{at:015}/{unique}" if isinstance(at, int) else f"{lane}/{at}/{unique}"


def held(*waiting: tuple[str, int], leased: Sequence[str] = (A,), **fields: object) -> State:
    """Some are leased, and others of their keys wait."""
    return {
        "meta": meta(**fields),
        "task": dict.fromkeys([*leased, *(id for id, _ in waiting)], record("a")),
        "leased": dict.fromkeys(leased, T + 9),
        "lease": dict.fromkeys(leased, "0:0::t"),
        "placed": dict.fromkeys(leased, 0),
        "due": {id: FAR + at for id, at in waiting},
        "keys": {entry(id, at): 0 for id, at in waiting},
        "topics": {"w": "1"},
    }


def acked(keys: ShardKeys, *ids: str, handing: Sequence[str] = ("w",)) -> Call[Any]:
    return consume.settle(keys, EPOCH, [SettleAck(id, "t") for id in ids or (A,)], handing=handing).at(NOW)


def test_the_next_is_ready_at_once(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(held((B, T), (C, T)))
    with shard.listener(keys.bell) as bell:
        assert shard.run(acked(keys)) == {}
        assert not bell.heard(), "nothing is left to dispatch"
    state = shard.state()
    assert (state["ready/w"], state["placed"], state["topics"]) == ([B], {B: 0}, {"w": "2"})
    assert (state["keys"], state["due"]) == ({entry(C, T): 0}, {C: FAR + T})
    assert "alarms" not in state, "it is full: its next settlement asks again"
    assert state["meta"]["began/w"] == f"2:{T}"
    assert shard.run(dispatch.dispatch(keys, EPOCH, ("w",), limit=9, max_attempts=9).at(NOW)).moved == 0


def test_it_stores_what_dispatch_would(shard: Shard, keys: ShardKeys) -> None:
    """All the same, but for when the poller wakes."""
    others = [f"w/k{n}/b" for n in range(7)]
    state = held(
        (B, T), (C, T - 5), *((id, T - n) for n, id in enumerate(others)), leased=[A, *(f"{id[:-1]}a" for id in others)]
    )
    found = []
    for handing in ((), ("w",)):
        shard.seed(state)
        shard.run(acked(keys, *state["leased"], handing=handing))
        assert ("ready/w" in shard.state()) == bool(handing)
        shard.run(dispatch.dispatch(keys, EPOCH, ("w",), limit=99, max_attempts=9).at(NOW))
        after = shard.state()
        after["ready/w"].sort()
        for field in ("wake_at", "late"):
            after["meta"].pop(field, None)
        found.append(after)
    assert found[0] == found[1]
    assert found[0]["ready/w"] == sorted([C, *others])


LATER = T + 700

KEPT: dict[str, tuple[State, State, dict[str, int]]] = {
    "it is not due": ({}, {"due": {B: FAR + LATER}, "keys": {entry(B, LATER): 0}}, {LANE: LATER}),
    "it waits for its retry": ({}, {"due": {B: FAR + LATER}, "keys": {entry(B, "-" + "0" * 14): 0}}, {LANE: LATER}),
    "a hold": ({}, {"holds": {LANE: f"{LATER}:900"}}, {LANE: LATER}),
    "a rate": ({"keys/w": "1:700:wait"}, {"rests": {LANE: T}}, {LANE: LATER}),
    "a rate whose turn it is": ({"keys/w": "1:700:wait"}, {"rests": {LANE: T - 700}}, {LANE: T}),
    "a wider window": ({"keys/w": "2:0:wait"}, {}, {LANE: T}),
    "it moves": ({"since": 5, "numbers": "1,2"}, {"gates": {LANE: "closed:5"}}, {}),
    "it is not here yet": ({"since": 5, "numbers": "1,2"}, {"gates": {LANE: "shut:5"}}, {}),
    "another is out, and its own place was lost": ({}, {"placed": {C: 0}, "ready/w": [C]}, {LANE: T}),
    "another is out under an earlier limit": ({"lowered/w": ""}, {"placed": {A: 0, C: 0}, "ready/w": [C]}, {LANE: T}),
}


@pytest.mark.parametrize("case", KEPT)
def test_what_keeps_a_key_from_giving_keeps_it_from_this(shard: Shard, keys: ShardKeys, case: str) -> None:
    fields, state, alarms = KEPT[case]
    shard.seed(held((B, T), **fields) | state)
    shard.run(acked(keys))
    after = shard.state()
    assert after.get("ready/w", []) == state.get("ready/w", [])
    assert (after["keys"], after.get("alarms", {})) == (state.get("keys", {entry(B, T): 0}), alarms)
    assert after["topics"] == {"w": "1"}


def test_a_gate_of_an_earlier_change_keeps_nothing(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(held((B, T), since=6, numbers="1") | {"gates": {LANE: "closed:5"}})
    shard.run(acked(keys))
    assert shard.state()["ready/w"] == [B]


def test_a_hold_of_another_key_keeps_nothing(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(held((B, T)) | {"holds": {f"w/k{n}/": f"{T + 900}:900" for n in range(3)}})
    shard.run(acked(keys))
    assert shard.state()["ready/w"] == [B]


def test_only_of_topics_that_the_caller_names(shard: Shard, keys: ShardKeys) -> None:
    """It names none that is paused or has a route."""
    shard.seed(held((B, T), ("v/k/b", T), leased=(A, "v/k/a")))
    shard.run(acked(keys, A, "v/k/a", handing=("v",)))
    state = shard.state()
    assert (state["ready/v"], state["alarms"]) == (["v/k/b"], {LANE: T})
    assert "ready/w" not in state


@pytest.mark.parametrize(
    ("other", "given"),
    [
        (SettleBury(A, "t", "no"), [B]),
        (SettleRetry(A, "t", 0, "no", 1), [B]),
        (SettleRetry(A, "t", 50, "no", 9), []),
        (SettleGiveBack(A, "t"), []),
    ],
)
def test_what_comes_back_goes_first(shard: Shard, keys: ShardKeys, other: Any, given: list[str]) -> None:
    shard.seed(held((B, T)))
    shard.run(consume.settle(keys, EPOCH, [], [other], handing=("w",)).at(NOW))
    state = shard.state()
    assert state.get("ready/w", []) == given
    assert (LANE in state.get("alarms", {})) == (not given)


def test_a_lease_that_is_lost_hands_over_nothing(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(held((B, T)))
    call = consume.settle(keys, EPOCH, [SettleAck(A, "another")], handing=("w",)).at(NOW)
    assert shard.run(call) == {A: "lost"}
    assert "ready/w" not in shard.state()


def test_the_place_of_a_replaced_lease_is_handed_over(shard: Shard, keys: ShardKeys) -> None:
    """Its holder is told, and the new task, which waits under the same id, is the next."""
    state = held((A, T), leased=())
    shard.seed(state | {"placed": {A: 0}, "alarms": {A: T + 9}, "lease": {A: "0:0::~t"}})
    assert shard.run(acked(keys)) == {A: "replaced"}
    after = shard.state()
    assert (after["ready/w"], after["placed"]) == ([A], {A: 0})
    assert "keys" not in after


def test_a_task_that_left_under_a_number_keeps_it(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(held((B, T)) | {"keys": {entry(B, "-" + "7".zfill(14)): 0}, "due": {B: FAR + T}})
    shard.run(acked(keys))
    assert (shard.state()["ready/w"], shard.state()["rests"]) == ([B], {B: -7})


def test_who_waits_is_woken(shard: Shard, keys: ShardKeys) -> None:
    lanes = [f"w/k{n}/" for n in range(9)]
    shard.seed(
        held(*((f"{lane}b", T) for lane in lanes), leased=[f"{lane}a" for lane in lanes])
        | {"waiting/w": {"p1": 1, "p2": 2, "gone": 0}}
    )
    with shard.listener(keys.wake("p1"), keys.wake("p2")) as ear:
        shard.run(acked(keys, *(f"{lane}a" for lane in lanes[:1])))
        assert ear.heard() == [(keys.wake("p1"), "w")], "one task, one process: the first that hears"
        assert shard.state()["waiting/w"] == {"p2": 2}
        shard.run(acked(keys, *(f"{lane}a" for lane in lanes[1:])))
        assert ear.heard() == [(keys.wake("p2"), "w")]


def test_where_too_many_may_be_gone_it_is_left_to_the_poller(shard: Shard, keys: ShardKeys) -> None:
    """A settlement wakes as far as it can draw; a poller goes on."""
    shard.seed(held((B, T)) | {"waiting/w": {f"p{n}": n for n in range(129)}})
    shard.run(acked(keys))
    state = shard.state()
    assert (state["alarms"], len(state["waiting/w"])) == ({LANE: T}, 129)
    assert "ready/w" not in state


def test_each_of_several_topics_wakes_one(shard: Shard, keys: ShardKeys) -> None:
    topics = [f"t{n}" for n in range(MAX_HANDING)]
    ids = [f"{topic}/k{n}/a" for topic in topics for n in range(3)]
    waiting = {f"waiting/{topic}": {f"gone{n}": n for n in range(14)} | {"p": 98, "q": 99} for topic in topics}
    shard.seed(held(*((f"{id[:-1]}b", T) for id in ids), leased=ids) | waiting)
    with shard.listener(keys.wake("p"), keys.wake("q")) as ear:
        shard.run(acked(keys, *ids, handing=topics))
        assert sorted(topic for _, topic in ear.heard()) == topics, "a settlement wakes no more than eight"


def test_a_list_of_another_type_gives_the_task_back(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(held((B, T)))
    shard.do("SET", keys.ready("w"), "of another program")
    assert shard.run(acked(keys)) == {}
    state = shard.state()
    assert (state["due"], state["alarms"]) == ({B: FAR + T}, {LANE: T})
    assert list(state["keys"]) == [entry(B, "-" + "0" * 14)]
    assert "placed" not in state
    assert A not in state.get("task", {})


@pytest.mark.parametrize("count", [1, 5])
def test_an_entry_that_is_not_due_anywhere_is_not_given(shard: Shard, keys: ShardKeys, count: int) -> None:
    """Another program's: dispatch removes it."""
    lanes = [f"w/k{n}/" for n in range(count)]
    state = held(*((f"{lane}b", T) for lane in lanes), leased=[f"{lane}a" for lane in lanes])
    del state["due"][f"{lanes[0]}b"]
    shard.seed(state)
    shard.run(acked(keys, *(f"{lane}a" for lane in lanes)))
    after = shard.state()
    assert after.get("ready/w", []) == [f"{lane}b" for lane in lanes[1:]]
    assert after["alarms"] == {lanes[0]: T}


def test_without_lists_it_is_the_call_that_it_was(keys: ShardKeys) -> None:
    call = consume.settle(keys, EPOCH, [SettleAck(A, "t")])
    assert [text(word) for word in call.words[3:]] == [1, 1, A, "t", 1]
    assert len(call.keys) == 14


def test_without_a_key_it_is_that_of_an_engine_without_keys(keys: ShardKeys) -> None:
    assert len(consume.settle(keys, EPOCH, [SettleAck("w/plain", "t"), SettleAck("plain", "t")]).keys) == 8
    assert len(consume.settle(keys, EPOCH, [SettleAck("w/plain", "t"), SettleAck(A, "t")]).keys) == 14


LOOKS = ["ZCARD waiting/w", "ZRANGEBYLEX keys [w/k/ + LIMIT 0 16"]

MADE: dict[str, tuple[State, list[str]]] = {
    "the next is due": (
        held((B, T)),
        [
            *LOOKS,
            f"ZCOUNT due {FAR} +inf",
            f"ZREM keys {entry(B, T)}",
            f"ZADD placed 0 {B}",
            f"ZREM due {B}",
            f"RPUSH ready/w {B}",
            "HINCRBY topics w 1",
            f"HSET meta began/w 2:{T}",
            "ZPOPMIN waiting/w",
        ],
    ),
    "nothing waits": (held(), LOOKS[:1]),
    "the next is due later": (
        held((B, LATER)),
        [*LOOKS, f"ZADD alarms LT {LATER} {LANE}", f"HSET meta wake_at {LATER}", "SPUBLISH bell ''"],
    ),
}


@pytest.mark.parametrize("case", MADE)
def test_a_key_is_asked_once(case: str) -> None:
    state, commands = MADE[case]
    of = shard_keys("x", 1, keyed=True)
    made = lines(Watched(of, state).made(acked(of)))
    assert made[made.index("HMGET meta keys/w lowered/w") + 1 :] == commands
