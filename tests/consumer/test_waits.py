"""What a waiting claim does next, step by step: two looks, then sleep, and where again after it."""

from __future__ import annotations

import time
from typing import cast

import pytest

from shardq.atlas import Atlas
from shardq.consumer.desk import SAFETY_S, STAGGER, WHOLE, Desk, Waiter
from shardq.consumer.hints import Stocks
from shardq.consumer.operations import Claims
from shardq.consumer.room import Room
from shardq.consumer.waits import CONTENDED_S, DEAF_S, Lengths, Look, Sleep, Waits
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Topology
from shardq.model.record import JSON

SHARDS = 3
UNTIL = 100.0


class Hall:
    """As much of a room as the steps look at."""

    def __init__(self) -> None:
        self.desk = Desk()
        self.deaf: set[int] = set()

    def hears(self, keys: ShardKeys) -> bool:
        return keys.shard not in self.deaf

    def named(self, *shards: int) -> None:
        """The answer of a claim that found these empty."""
        self.desk.named(self.desk.turns(shards, ("",)), [(shard, "") for shard in shards], 1)


@pytest.fixture
def claims() -> Claims:
    atlas = Atlas("waits", Topology(epoch=1, shards=SHARDS))
    return Claims(atlas, [""], name="c", lease_ms=1000, codec=JSON, max_attempts=1, stocks=Stocks())


@pytest.fixture
def hall() -> Hall:
    return Hall()


@pytest.fixture
def waits(claims: Claims, hall: Hall) -> Waits:
    waiter = Waiter([""], lambda: None)
    hall.desk.enter(waiter)
    return Waits(claims, cast(Room, hall), waiter, UNTIL)


def asleep(waits: Waits, hall: Hall) -> Sleep:
    """To the point where every list knows us."""
    assert waits.step(0.0) == Look([0, 1, 2], naming=False)
    assert waits.step(0.0) == Look([0, 1, 2], naming=True)
    hall.named(0, 1, 2)
    step = waits.step(0.0)
    assert isinstance(step, Sleep)
    return step


def test_going_idle_takes_two_looks_and_then_a_long_sleep(waits: Waits, hall: Hall) -> None:
    assert 0.8 * SAFETY_S <= asleep(waits, hall).seconds <= (1.2 + STAGGER) * SAFETY_S


def test_woken_it_asks_only_where_it_is_not_known(waits: Waits, hall: Hall) -> None:
    asleep(waits, hall)
    hall.desk.heard((1, ""))
    assert waits.step(1.0) == Look([1], naming=False)
    assert waits.step(1.0) == Look([1], naming=True)
    hall.named(1)
    assert isinstance(waits.step(1.0), Sleep)


def test_woken_for_nothing_it_asks_nobody(waits: Waits, hall: Hall) -> None:
    asleep(waits, hall)
    assert isinstance(waits.step(1.0), Sleep)


def test_after_a_whole_sleep_it_asks_for_lengths_and_now_and_then_leaves_its_names_again(
    waits: Waits, hall: Hall
) -> None:
    waits.until = 1000.0
    asleep(waits, hall)
    now = 0.0
    for _ in range(2):
        for _ in range(WHOLE - 1):
            now += 1.2 * SAFETY_S
            assert waits.step(now) == Lengths(range(SHARDS))
            assert isinstance(waits.step(now), Sleep)
        now += 1.2 * SAFETY_S
        assert waits.step(now) == Look([0, 1, 2], naming=True)
        hall.named(0, 1, 2)
        assert isinstance(waits.step(now), Sleep)


def test_a_list_that_is_not_empty_though_nobody_said_so(waits: Waits, hall: Hall) -> None:
    asleep(waits, hall)
    now = 1.2 * SAFETY_S
    assert waits.step(now) == Lengths(range(SHARDS))
    hall.desk.not_empty([(1, "")])
    assert waits.step(now) == Look([1], naming=False)
    assert waits.step(now) == Look([1], naming=True)


def test_of_many_that_wait_one_looks_for_all(waits: Waits, hall: Hall, claims: Claims) -> None:
    asleep(waits, hall)
    others = [Waits(claims, cast(Room, hall), Waiter([""], lambda: None), UNTIL) for _ in range(20)]
    assert all(isinstance(other.step(0.0), Sleep) for other in others)
    first, *rest = others
    now = 1.2 * SAFETY_S
    assert first.step(now) == Lengths(range(SHARDS))
    sleeps = [other.step(now + 0.1) for other in (*rest, waits)]
    assert all(isinstance(step, Sleep) for step in sleeps)
    # and next time not all at once
    assert len({step.seconds for step in sleeps if isinstance(step, Sleep)}) == len(sleeps)


def test_claims_too_short_for_a_whole_sleep_look_again_too(hall: Hall, claims: Claims) -> None:
    now, looked = 0.0, list[float]()
    while now < 3 * SAFETY_S:
        waits = Waits(claims, cast(Room, hall), Waiter([""], lambda: None), now + 0.5)
        while (step := waits.step(now)) is not None:
            if isinstance(step, Sleep):
                now += step.seconds
            elif isinstance(step, Lengths):
                looked.append(now)
            elif step.naming:
                hall.named(*step.shards)
    assert len(looked) in (2, 3)


def test_no_sleep_is_longer_than_the_time_left(waits: Waits, hall: Hall) -> None:
    waits.until = 3.0
    assert asleep(waits, hall).seconds == 3.0
    assert waits.step(3.0) is None


def test_a_wake_up_at_the_very_end_is_still_answered(waits: Waits, hall: Hall) -> None:
    waits.until = 3.0
    asleep(waits, hall)
    hall.desk.heard((2, ""))
    assert waits.step(3.0) == Look([2], naming=False)
    assert waits.step(3.0) == Look([2], naming=True)
    hall.named(2)
    assert waits.step(3.0) is None


def test_no_name_is_left_where_a_wake_up_would_not_be_heard(waits: Waits, hall: Hall) -> None:
    hall.deaf = {1}
    assert waits.step(0.0) == Look([0, 1, 2], naming=False)
    assert waits.step(0.0) == Look([0, 2], naming=True)
    hall.named(0, 2)
    assert waits.step(0.0) == Sleep(DEAF_S)
    assert waits.step(DEAF_S) == Look([1], naming=False)
    assert waits.step(DEAF_S) == Sleep(DEAF_S)
    hall.deaf = set()
    assert waits.step(2 * DEAF_S) == Look([1], naming=False)
    assert waits.step(2 * DEAF_S) == Look([1], naming=True)


def test_lists_that_others_are_emptying_are_asked_again_soon(waits: Waits, hall: Hall) -> None:
    waits.step(0.0)
    waits.step(0.0)
    hall.named(0, 1)  # and shard 2 was not empty, but gave nothing
    assert waits.step(0.0) == Sleep(CONTENDED_S)
    assert waits.step(CONTENDED_S) == Look([2], naming=False)


def test_a_limited_topic_is_asked_for_when_it_may_be_had(waits: Waits, hall: Hall, claims: Claims) -> None:
    now = time.monotonic()
    waits.until = now + UNTIL
    claims.permits.denied[""] = now + 0.7
    waits.step(now)
    waits.step(now)
    hall.named(0, 1)
    step = waits.step(now)
    assert isinstance(step, Sleep)
    assert step.seconds == pytest.approx(0.7)


def test_while_all_topics_are_paused_it_only_sleeps(waits: Waits, claims: Claims) -> None:
    claims.atlas.learn(Topology(epoch=2, shards=SHARDS, paused=("",)))
    assert isinstance(waits.step(0.0), Sleep)
    claims.atlas.learn(Topology(epoch=3, shards=SHARDS))
    assert isinstance(waits.step(0.0), Look)


def test_what_it_was_woken_for_is_its_own_until_it_looks(waits: Waits, hall: Hall) -> None:
    asleep(waits, hall)
    hall.desk.heard((1, ""))
    assert waits.waiter.lists == {(1, "")}
    waits.step(1.0)
    assert waits.waiter.lists == set()
