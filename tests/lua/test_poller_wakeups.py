"""A script that makes something due before the poller wakes (wake_at) rings its bell, once a sleep; a lost ring is
repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq.core.calls import by_id, consume, transfer
from shardq.core.calls.consume import SettleAck, SettleBury, SettleGiveBack, SettleRetry
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, at, meta, record
from tests.lua.test_claim import claim
from tests.lua.test_dispatch import dispatch

A = record("a")

SLEEPS_TO = T + 1000

HELD: State = {"task": {"a": A}, "leased": {"a": T + 5000}, "lease": {"a": "0:0::tok"}}

# what makes something fall due `ms` after T
RINGERS: dict[str, tuple[State, Callable[[ShardKeys, int], Call[Any]]]] = {
    "push": ({}, lambda keys, ms: by_id.push(keys, EPOCH, ["n", T + ms, A]).at(NOW)),
    "push of many": (
        {},
        lambda keys, ms: by_id.push(keys, EPOCH, ["n", T + 5000, A, "o", T + ms, A, "p", T + 6000, A]).at(NOW),
    ),
    "push_unique of many": (
        {},
        lambda keys, ms: by_id.push_unique(
            keys,
            EPOCH,
            [word for id, due in (("n", 5000), ("o", ms), ("p", 6000)) for word in (id, T + due, A, "keep", 0)],
        ).at(NOW),
    ),
    "push_unique": ({}, lambda keys, ms: by_id.push_unique(keys, EPOCH, ["n", T + ms, A, "keep", 0]).at(NOW)),
    "adopt of many": (
        {},
        lambda keys, ms: transfer.adopt(
            keys,
            EPOCH,
            [word for id, due in (("n", 5000), ("o", ms), ("p", 6000)) for word in (id, T + due, A, "due", "", "")],
            once="7-50",
        ).at(NOW),
    ),
    "push_unique replacing": (
        {"task": {"a": A}, "ready/": ["a"]},
        lambda keys, ms: by_id.push_unique(keys, EPOCH, ["a", T + ms, A, "replace", 0]).at(NOW),
    ),
    "reschedule": (
        {"task": {"a": A}, "due": {"a": T + 5000}},
        lambda keys, ms: by_id.reschedule(keys, EPOCH, "a", T + ms).at(NOW),
    ),
    "requeue": (
        {"task": {"a": A}, "dead": {"a": T}, "why": {"a": "x"}},
        lambda keys, ms: by_id.requeue(keys, EPOCH, "a", T + ms).at(NOW),
    ),
    "retry": (
        HELD,
        lambda keys, ms: consume.settle(keys, EPOCH, [], [SettleRetry("a", "tok", ms, "x", 9)]).at(NOW),
    ),
    "retry of many": (
        {"task": dict.fromkeys("abc", A), "leased": dict.fromkeys("abc", T + 5000)}
        | {"lease": dict.fromkeys("abc", "0:0::tok")},
        lambda keys, ms: consume.settle(
            keys,
            EPOCH,
            [],
            [SettleRetry(id, "tok", delay, "x", 9) for id, delay in (("a", 5000), ("b", ms), ("c", 6000))],
        ).at(NOW),
    ),
    "claim": (
        {"task": {"a": A}, "ready/": ["a"]},
        lambda keys, ms: consume.claim(keys, EPOCH, {"": 1}, max=1, lease_ms=ms, token="tok").at(NOW),
    ),
    "extend": (HELD, lambda keys, ms: consume.extend(keys, EPOCH, [SettleAck("a", "tok")], lease_ms=ms).at(NOW)),
}


@pytest.mark.parametrize("ringer", RINGERS)
@pytest.mark.parametrize(("ms", "rings"), [(999, 1), (1000, 0), (1001, 0)])
def test_before_the_poller_wakes(shard: Shard, keys: ShardKeys, ringer: str, ms: int, rings: int) -> None:
    before, call = RINGERS[ringer]
    shard.seed({"meta": meta(wake_at=SLEEPS_TO)} | before)
    with shard.listener(keys.bell) as bell:
        shard.run(call(keys, ms))
        assert bell.heard() == [(keys.bell, "")] * rings
    assert shard.state()["meta"]["wake_at"] == f"{min(T + ms, SLEEPS_TO)}"


@pytest.mark.parametrize("wake_at", [None, ""])
def test_a_poller_that_sleeps_until_it_is_woken(shard: Shard, keys: ShardKeys, wake_at: str | None) -> None:
    shard.seed({"meta": meta() if wake_at is None else meta(wake_at=wake_at)})
    with shard.listener(keys.bell) as bell:
        shard.run(by_id.push(keys, EPOCH, ["n", T + 9_000_000, A]).at(NOW))
        assert bell.heard() == [(keys.bell, "")]


def test_given_back_rings(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(wake_at=SLEEPS_TO)} | HELD)
    with shard.listener(keys.bell) as bell:
        shard.run(consume.settle(keys, EPOCH, [], [SettleGiveBack("a", "tok")]).at(NOW))
        assert bell.heard() == [(keys.bell, "")]


def pushed(shard: Shard, keys: ShardKeys, id: str, due: int, ms: int = 0) -> None:
    shard.run(by_id.push(keys, EPOCH, [id, due, A]).at(at(ms)))


def test_one_ring_a_sleep(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(wake_at=SLEEPS_TO)})
    with shard.listener(keys.bell) as bell:
        for n in range(5):
            pushed(shard, keys, f"same{n}", T + 500)
            pushed(shard, keys, f"later{n}", T + 500 + n)
        assert len(bell.heard()) == 1
        # the poller has come, and sleeps anew
        assert shard.run(dispatch(keys)).next_us == (T + 500) * 1000
        pushed(shard, keys, "a", T + 700)
        assert bell.heard() == []
        pushed(shard, keys, "b", T + 300)
        assert len(bell.heard()) == 1


@pytest.mark.parametrize("due", [0, 1, T - 5000], ids=["now", "1970", "five seconds ago"])
def test_many_at_once_that_are_due_ring_once(shard: Shard, keys: ShardKeys, due: int) -> None:
    shard.seed({"meta": meta(wake_at=SLEEPS_TO)})
    with shard.listener(keys.bell) as bell:
        for n in range(10):
            pushed(shard, keys, f"i{n}", due, ms=n)
        assert len(bell.heard()) == 1


def test_a_lost_ring_heals_after_fifty_milliseconds_and_not_more_often(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(wake_at=T)})
    with shard.listener(keys.bell) as bell:
        pushed(shard, keys, "a", T + 9000, ms=50)
        assert bell.heard() == []
        pushed(shard, keys, "b", T + 9000, ms=51)
        assert len(bell.heard()) == 1
        assert shard.state()["meta"]["wake_at"] == f"{T + 51}"
        for n in range(5):
            pushed(shard, keys, f"c{n}", T + 9000, ms=60 + n)
        assert bell.heard() == []
        pushed(shard, keys, "d", T + 9000, ms=102)
        assert len(bell.heard()) == 1


@pytest.mark.parametrize("wake_at", [T - 10_000, SLEEPS_TO])
def test_what_changes_nothing_rings_nobody(shard: Shard, keys: ShardKeys, wake_at: int) -> None:
    before = {"meta": meta(wake_at=wake_at), "task": {"a": A}, "ready/": ["a"]}
    shard.seed(before)
    calls: list[Call[Any]] = [
        by_id.push(keys, EPOCH, []).at(NOW),
        by_id.push(keys, EPOCH, ["a", 1, A]).at(NOW),
        by_id.push_unique(keys, EPOCH, ["a", 1, A, "keep", 0]).at(NOW),
        by_id.reschedule(keys, EPOCH, "none", 1).at(NOW),
        by_id.requeue(keys, EPOCH, "a", 1).at(NOW),
        consume.settle(keys, EPOCH, [SettleAck("a", "x")], [SettleRetry("a", "x", 0, "", 9)]).at(NOW),
        consume.extend(keys, EPOCH, [SettleAck("a", "x")], lease_ms=1).at(NOW),
        claim(keys, {}),
    ]
    with shard.listener(keys.bell) as bell:
        for call in calls:
            shard.run(call)
        assert bell.heard() == []
    assert shard.state() == before


@pytest.mark.parametrize("ringer", ["claim", "extend"])
@pytest.mark.parametrize(("ms", "rings"), [(20_000, 1), (20_001, 0)])
def test_a_lease_that_is_longer_than_a_poller_sleeps_rings_nobody(
    shard: Shard, keys: ShardKeys, ringer: str, ms: int, rings: int
) -> None:
    before, call = RINGERS[ringer]
    shard.seed({"meta": meta(wake_at="")} | before)
    with shard.listener(keys.bell) as bell:
        shard.run(call(keys, ms))
        assert bell.heard() == [(keys.bell, "")] * rings


def test_who_buries_rings_nobody(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(wake_at=T - 9000)} | HELD)
    with shard.listener(keys.bell) as bell:
        assert shard.run(consume.settle(keys, EPOCH, [], [SettleBury("a", "tok", "x")]).at(NOW)) == {}
        assert bell.heard() == []
    assert shard.state()["meta"]["wake_at"] == f"{T - 9000}"
