"""Scripts read the first entries of many lanes by one call, where lanes are asked in their order: what each gives is
the same in any order, beside lanes of which nothing waits, and those that have much.
"""

from __future__ import annotations

import random

import pytest

from shardq.core.calls import by_id, consume, dispatch
from shardq.core.calls.consume import SettleAck
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.request import Word
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.inner import Watched, lines
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

FAR = int(FAR_MS)


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 1, keyed=True)


def waiting(source: random.Random, lanes: list[str]) -> dict[str, list[tuple[int, str]]]:
    """Due time and id of what waits, lane by lane, in the order in which it goes: of many nothing, of some much."""
    sizes = {lane: source.choice([0, 0, 1, 1, 2, 3, 12]) for lane in lanes}
    return {
        lane: sorted((T + source.choice([-5, 0, 7]), f"{lane}{source.randrange(10**6)}") for _ in range(size))
        for lane, size in sizes.items()
    }


def stored(tasks: dict[str, list[tuple[int, str]]], **fields: object) -> State:
    every = [task for of_lane in tasks.values() for task in of_lane]
    return {
        "meta": meta(**fields),
        "task": {id: record("a") for _, id in every},
        "due": {id: FAR + at for at, id in every},
        "keys": {f"{id.rpartition('/')[0]}/{at:015}/{id.rpartition('/')[2]}": 0 for at, id in every},
    }


def lanes_of(source: random.Random, *, others: bool) -> list[str]:
    lanes = [f"w/{number}/" for number in source.sample(range(3000), 60)]
    return lanes + [f"{topic}/{n}/" for topic in ("a", "w.x", "z") for n in range(9)] * others


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_a_settlement(shard: Shard, keys: ShardKeys, seed: int, in_order: bool, others: bool) -> None:
    source = random.Random(seed)
    lanes = lanes_of(source, others=others)
    tasks = waiting(source, lanes)
    ending = [lane for lane in lanes if lane.startswith("w/")]
    source.shuffle(ending)
    if in_order:
        ending.sort()
    leased = [f"{lane}leased" for lane in ending]
    state = stored(tasks)
    state["task"] |= dict.fromkeys(leased, record("a"))
    state |= {
        "leased": dict.fromkeys(leased, T + 9),
        "lease": dict.fromkeys(leased, "0:0::t"),
        "placed": dict.fromkeys(leased, 0),
    }
    shard.seed(state)
    shard.run(consume.settle(keys, EPOCH, [SettleAck(id, "t") for id in leased], handing=("w",)).at(NOW))
    after = shard.state()
    firsts = [(lane, *tasks[lane][0]) for lane in ending if tasks[lane]]
    given = [id for _, at, id in firsts if at <= T]
    assert after.get("ready/w", []) == given
    assert after.get("placed", {}) == dict.fromkeys(given, 0)
    assert after.get("alarms", {}) == {lane: at for lane, at, _ in firsts if at > T}
    assert len(after.get("keys", {})) == len(state["keys"]) - len(given)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_dispatch(shard: Shard, keys: ShardKeys, seed: int, at_once: bool) -> None:
    """At once: the alarms of all are of one instant, so they ring in the order of their names. Some lanes are full."""
    source = random.Random(seed)
    lanes = lanes_of(source, others=seed % 2 > 0)
    tasks = waiting(source, lanes)
    full = set(source.sample(lanes, seed * 5))
    state = stored(tasks)
    out = {f"{lane}out": 0 for lane in full}
    state |= {"placed": out, "alarms": {lane: T - (0 if at_once else source.randrange(9)) for lane in lanes}}
    shard.seed(state)
    shard.run(dispatch.dispatch(keys, EPOCH, ("a", "w", "w.x", "z"), limit=1000, max_attempts=9).at(NOW))
    after = shard.state()
    firsts = {lane: tasks[lane][0] for lane in lanes if tasks[lane] and lane not in full}
    given = {id for at, id in firsts.values() if at <= T}
    assert {id for topic in ("a", "w", "w.x", "z") for id in after.get(f"ready/{topic}", [])} == given
    assert after.get("placed", {}) == out | dict.fromkeys(given, 0)
    assert after.get("alarms", {}) == {lane: at for lane, (at, _) in firsts.items() if at > T}


def test_a_lane_that_is_asked_twice_has_one_first(shard: Shard, keys: ShardKeys) -> None:
    """With a rate, and too early: a dispatch looks if it can give, and then when it can."""
    tasks = {"w/k/": [(T + 5, "w/k/a"), (T + 9, "w/k/b")], "w/l/": [(T + 7, "w/l/a")]}
    shard.seed(stored(tasks, **{"keys/w": "1:10:wait"}) | {"alarms": {"w/k/": T}})
    shard.run(dispatch.dispatch(keys, EPOCH, ("w",), limit=1000, max_attempts=9).at(NOW))
    assert shard.state()["alarms"] == {"w/k/": T + 5}


@pytest.mark.parametrize(
    ("holds", "lanes", "by_fields"),
    [
        (8, 1, False),
        (9, 1, True),
        (16, 2, False),
        (17, 2, True),
        (512, 64, False),
        (513, 65, True),
        (513, 513, False),
        (514, 513, True),
    ],
)
def test_holds_are_read_whole_where_that_is_less(keys: ShardKeys, holds: int, lanes: int, by_fields: bool) -> None:
    """By fields a server searches a small hash from its start for each. Of one on hold the alarm is the end of it."""
    ids = [f"w/{number}/a" for number in range(lanes)]
    state = {"meta": meta(), "holds": {f"w/{number}/": f"{T + 900}:900" for number in range(1, holds + 1)}}
    watched = Watched(keys, state)
    made = lines(
        watched.made(by_id.push(keys, EPOCH, [word for id in ids for word in (id, T + 5, record("a"))]).at(NOW))
    )
    looks = [line.partition(" w/")[0] for line in made if line.startswith(("HMGET holds", "HGETALL holds"))]
    assert looks == ["HMGET holds" if by_fields else "HGETALL holds"]
    told = watched.server.command(b"ZRANGE", keys.alarms.encode(), b"0", b"-1", b"WITHSCORES")
    assert {lane.decode(): float(at) for lane, at in zip(told[::2], told[1::2], strict=True)} == {
        f"w/{number}/": T + (900 if 1 <= number <= holds else 5) for number in range(lanes)
    }


def test_of_many_that_enter_a_lane_the_first_rings_without_a_look(keys: ShardKeys) -> None:
    watched = Watched(keys, {"meta": meta()})
    words: list[Word] = [word for at in (T + 9, T + 5, T + 7) for word in (f"w/k/{at}", at, record("a"))]
    made = lines(watched.made(by_id.push(keys, EPOCH, words).at(NOW)))
    assert not [line for line in made if line.startswith("ZRANGEBYLEX")]
    assert f"ZADD alarms LT {T + 5} w/k/" in made
