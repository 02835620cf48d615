"""The steps of a waiting claim: two looks, then sleep; and after a wake-up, which shards are asked."""

from __future__ import annotations

import time
from typing import cast

import pytest

from shardq.core.calls.consume import Permit
from shardq.core.consumer.claim_planner import FRESH_S, ReadyCounts
from shardq.core.consumer.claim_state import (
    CONTENDED_S,
    UNSUBSCRIBED_S,
    AskLengths,
    ClaimFrom,
    Claims,
    Sleep,
    WaitStrategy,
)
from shardq.core.consumer.rate_limiter import Permits
from shardq.core.consumer.waiter_registry import FULL_RECHECK_EVERY, RECHECK_S, STAGGER, Waiter, WaiterRegistry
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Limit, TopicSettings, Topology
from shardq.core.model.record import JSON
from shardq.core.topology_cache import TopologyCache

SHARDS = 3
UNTIL = 100.0


class KnownWakeups:
    """The part of ``Wakeups`` that the steps use."""

    def __init__(self) -> None:
        self.waiters = WaiterRegistry()
        self.unsubscribed: set[int] = set()
        self.hears = True

    def is_subscribed(self, keys: ShardKeys) -> bool:
        return keys.shard not in self.unsubscribed

    @property
    def hears_permits(self) -> bool:
        return self.hears

    def waiting_for_permits(self, waiter: Waiter, topic: str) -> tuple[str, bool]:
        return "process" if self.hears else "", False

    def registered(self, *shards: int) -> None:
        """The answer of a claim that found these empty."""
        self.waiters.registered(self.waiters.wakeup_counts(shards, ("",)), [(shard, "") for shard in shards], 1)


@pytest.fixture
def claims() -> Claims:
    cache = TopologyCache("strategy", Topology(epoch=1, shards=SHARDS))
    return Claims(cache, [""], name="c", lease_ms=1000, codec=JSON, ready_counts=ReadyCounts())


@pytest.fixture
def wakeups() -> KnownWakeups:
    return KnownWakeups()


@pytest.fixture
def strategy(claims: Claims, wakeups: KnownWakeups) -> WaitStrategy:
    waiter = Waiter([""], lambda: None)
    wakeups.waiters.enter(waiter)
    return WaitStrategy(claims, cast(Wakeups, wakeups), waiter, UNTIL)


def asleep(strategy: WaitStrategy, wakeups: KnownWakeups) -> Sleep:
    """To the point where every list knows us."""
    assert strategy.step(0.0) == ClaimFrom([0, 1, 2], registering=False)
    assert strategy.step(0.0) == ClaimFrom([0, 1, 2], registering=True)
    wakeups.registered(0, 1, 2)
    step = strategy.step(0.0)
    assert isinstance(step, Sleep)
    return step


def test_going_idle_takes_two_looks_and_then_a_long_sleep(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    assert 0.8 * RECHECK_S <= asleep(strategy, wakeups).seconds <= (1.2 + STAGGER) * RECHECK_S


def test_woken_it_asks_only_where_it_is_not_known(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    asleep(strategy, wakeups)
    wakeups.waiters.wakeup_received((1, ""))
    assert strategy.step(1.0) == ClaimFrom([1], registering=False)
    assert strategy.step(1.0) == ClaimFrom([1], registering=True)
    wakeups.registered(1)
    assert isinstance(strategy.step(1.0), Sleep)


def test_woken_while_others_wait_it_registers_for_them(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    asleep(strategy, wakeups)
    another = Waiter([""], lambda: None)
    wakeups.waiters.enter(another)
    wakeups.waiters.wakeup_received((1, ""))
    wakeups.unsubscribed = {1}
    assert strategy.step(1.0) == ClaimFrom([1], registering=False)  # a wake-up would not be heard
    wakeups.waiters.wakeup_received((1, ""))
    assert isinstance(strategy.step(1.0), Sleep)
    wakeups.unsubscribed = set()
    assert strategy.step(1.0) == ClaimFrom([1], registering=True)


@pytest.mark.parametrize(("left", "age_s", "tries"), [(0, 0.0, 0), (0, 2 * FRESH_S, 1), (1, 0.0, 1)])
def test_where_nothing_was_left_a_moment_ago_one_look_is_enough(
    strategy: WaitStrategy, wakeups: KnownWakeups, claims: Claims, left: int, age_s: float, tries: int
) -> None:
    """A task that woke the consumer takes two claims of it: the one that gets the task, and one to wait again."""
    asleep(strategy, wakeups)
    wakeups.waiters.wakeup_received((1, ""))
    assert strategy.step(1.0) == ClaimFrom([1], registering=False)
    wakeups.waiters.leave(strategy.waiter)
    claims.ready_counts.learn(1, {"": left}, 1.0)
    again = WaitStrategy(claims, cast(Wakeups, wakeups), Waiter([""], lambda: None), UNTIL)
    for _ in range(tries):
        assert again.step(1.0 + age_s) == ClaimFrom([1], registering=False)
    assert again.step(1.0 + age_s) == ClaimFrom([1], registering=True)
    wakeups.registered(1)
    assert isinstance(again.step(1.0 + age_s), Sleep)


def test_woken_for_nothing_it_asks_nobody(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    asleep(strategy, wakeups)
    assert isinstance(strategy.step(1.0), Sleep)


def test_after_a_whole_sleep_it_asks_for_lengths_and_now_and_then_leaves_its_names_again(
    strategy: WaitStrategy, wakeups: KnownWakeups
) -> None:
    strategy.until = 1000.0
    asleep(strategy, wakeups)
    now = 0.0
    for _ in range(2):
        for _ in range(FULL_RECHECK_EVERY - 1):
            now += 1.2 * RECHECK_S
            assert strategy.step(now) == AskLengths(range(SHARDS))
            assert isinstance(strategy.step(now), Sleep)
        now += 1.2 * RECHECK_S
        assert strategy.step(now) == ClaimFrom([0, 1, 2], registering=True)
        wakeups.registered(0, 1, 2)
        assert isinstance(strategy.step(now), Sleep)


def test_a_list_that_is_not_empty_though_nobody_said_so(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    asleep(strategy, wakeups)
    now = 1.2 * RECHECK_S
    assert strategy.step(now) == AskLengths(range(SHARDS))
    wakeups.waiters.not_empty([(1, "")])
    assert strategy.step(now) == ClaimFrom([1], registering=False)
    assert strategy.step(now) == ClaimFrom([1], registering=True)


def test_of_many_that_wait_one_looks_for_all(strategy: WaitStrategy, wakeups: KnownWakeups, claims: Claims) -> None:
    asleep(strategy, wakeups)
    others = [WaitStrategy(claims, cast(Wakeups, wakeups), Waiter([""], lambda: None), UNTIL) for _ in range(20)]
    assert all(isinstance(other.step(0.0), Sleep) for other in others)
    first, *rest = others
    now = 1.2 * RECHECK_S
    assert first.step(now) == AskLengths(range(SHARDS))
    sleeps = [other.step(now + 0.1) for other in (*rest, strategy)]
    assert all(isinstance(step, Sleep) for step in sleeps)
    # and next time not all at once
    assert len({step.seconds for step in sleeps if isinstance(step, Sleep)}) == len(sleeps)


def test_claims_too_short_for_a_whole_sleep_look_again_too(wakeups: KnownWakeups, claims: Claims) -> None:
    now, looked = 0.0, list[float]()
    while now < 3 * RECHECK_S:
        strategy = WaitStrategy(claims, cast(Wakeups, wakeups), Waiter([""], lambda: None), now + 0.5)
        while (step := strategy.step(now)) is not None:
            if isinstance(step, Sleep):
                now += step.seconds
            elif isinstance(step, AskLengths):
                looked.append(now)
            elif step.registering:
                wakeups.registered(*step.shards)
    assert len(looked) in (2, 3)


def test_no_sleep_is_longer_than_the_time_left(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    strategy.until = 3.0
    assert asleep(strategy, wakeups).seconds == 3.0
    assert strategy.step(3.0) is None


def test_a_wake_up_at_the_very_end_is_still_answered(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    strategy.until = 3.0
    asleep(strategy, wakeups)
    wakeups.waiters.wakeup_received((2, ""))
    assert strategy.step(3.0) == ClaimFrom([2], registering=False)
    assert strategy.step(3.0) == ClaimFrom([2], registering=True)
    wakeups.registered(2)
    assert strategy.step(3.0) is None


def test_no_name_is_left_where_a_wake_up_would_not_be_heard(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    wakeups.unsubscribed = {1}
    assert strategy.step(0.0) == ClaimFrom([0, 1, 2], registering=False)
    assert strategy.step(0.0) == ClaimFrom([0, 2], registering=True)
    wakeups.registered(0, 2)
    assert strategy.step(0.0) == Sleep(UNSUBSCRIBED_S)
    assert strategy.step(UNSUBSCRIBED_S) == ClaimFrom([1], registering=False)
    assert strategy.step(UNSUBSCRIBED_S) == Sleep(UNSUBSCRIBED_S)
    wakeups.unsubscribed = set()
    assert strategy.step(2 * UNSUBSCRIBED_S) == ClaimFrom([1], registering=False)
    assert strategy.step(2 * UNSUBSCRIBED_S) == ClaimFrom([1], registering=True)


def test_lists_that_others_are_emptying_are_asked_again_soon(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    strategy.step(0.0)
    strategy.step(0.0)
    wakeups.registered(0, 1)  # and shard 2 was not empty, but gave nothing
    assert strategy.step(0.0) == Sleep(CONTENDED_S)
    assert strategy.step(CONTENDED_S) == ClaimFrom([2], registering=False)


def test_a_limited_topic_is_asked_for_when_it_may_be_had(
    strategy: WaitStrategy, wakeups: KnownWakeups, claims: Claims
) -> None:
    claims.cache.learn(Topology(epoch=2, shards=SHARDS, topics={"": TopicSettings(limit=Limit(rate=1))}))
    asking = claims.limiter.granted({"": 1}, "token", Permits())
    next(asking)
    with pytest.raises(StopIteration):
        asking.send([("", Permit(0, 700))])
    now = time.monotonic()
    strategy.until = now + UNTIL
    strategy.step(now)
    strategy.step(now)
    wakeups.registered(0, 1)
    step = strategy.step(now)
    assert isinstance(step, Sleep)
    assert step.seconds == pytest.approx(0.7, abs=0.1)
    claims.cache.learn(Topology(epoch=3, shards=SHARDS, topics={"": TopicSettings(limit=Limit(rate=2))}))
    assert claims.limiter.denied() == {}, "that was another limit"


def test_who_hears_of_permits_does_not_ask_for_what_it_was_denied_before_it_heard(
    strategy: WaitStrategy, wakeups: KnownWakeups, claims: Claims
) -> None:
    """The two denials end at times of their own: a waiter asked without end for what it could not be given."""
    claims.cache.learn(Topology(epoch=2, shards=SHARDS, topics={"": TopicSettings(limit=Limit(concurrency=1))}))
    claims.limiter.wakeups = cast(Wakeups, wakeups)

    def denied(again_ms: int) -> None:
        asking = claims.limiter.granted({"": 1}, "token", Permits(), strategy.waiter)
        next(asking)
        with pytest.raises(StopIteration):
            asking.send([("", Permit(0, again_ms))])

    wakeups.hears = False
    denied(10)
    wakeups.hears = True
    denied(4000)
    strategy.until = time.monotonic() + UNTIL
    wakeups.registered(0, 1)
    time.sleep(0.02)
    assert isinstance(strategy.step(time.monotonic()), Sleep)


def test_while_all_topics_are_paused_it_only_sleeps(strategy: WaitStrategy, claims: Claims) -> None:
    claims.cache.learn(Topology(epoch=2, shards=SHARDS, topics={"": TopicSettings(paused=True)}))
    assert isinstance(strategy.step(0.0), Sleep)
    claims.cache.learn(Topology(epoch=3, shards=SHARDS))
    assert isinstance(strategy.step(0.0), ClaimFrom)


def test_what_it_was_woken_for_is_its_own_until_it_looks(strategy: WaitStrategy, wakeups: KnownWakeups) -> None:
    asleep(strategy, wakeups)
    wakeups.waiters.wakeup_received((1, ""))
    assert strategy.waiter.woken_for == {(1, "")}
    strategy.step(1.0)
    assert strategy.waiter.woken_for == set()
