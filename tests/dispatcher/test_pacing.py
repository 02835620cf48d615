"""A poller sleeps exactly until the next task is due, less the time that its wake-up takes. Its batches are large while
there is a backlog, and smaller while trips are slow.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.calls.dispatch import MAX_BATCH, Dispatched
from shardq.core.dispatcher.poller import (
    AWAKE_S,
    HOT_PER_S,
    LEAST_BATCH,
    LONGEST_SLEEP_S,
    MOST_LEAD_US,
    REST_S,
    SLOW_S,
    UNSUBSCRIBED_SLEEP_S,
    WORTH_A_TRIP,
    BatchSizer,
    Lead,
    sleep,
)

NOW_US = 1_800_000_000_000_000


def answer(next_us: int | None) -> Dispatched:
    return Dispatched(0, 0, 0, -1, -1, next_us, NOW_US, (), (), (), ())


@given(st.integers(-(10**6), int(LONGEST_SLEEP_S * 0.9e6)), st.floats(0, MOST_LEAD_US))
def test_a_sleep_ends_at_the_next_instant_or_a_lead_before(away_us: int, lead_us: float) -> None:
    seconds, until_us = sleep(answer(NOW_US + away_us), Lead(lead_us), is_subscribed=True)
    if away_us < AWAKE_S * 1e6:
        assert until_us is None
        assert seconds == pytest.approx(max(0, away_us) / 1e6)
    else:
        assert until_us == NOW_US + away_us
        assert seconds == pytest.approx((away_us - lead_us) / 1e6)
        assert seconds > 0


@pytest.mark.parametrize("next_us", [None, NOW_US + int(2e6 * LONGEST_SLEEP_S)])
@pytest.mark.parametrize(("is_subscribed", "longest"), [(True, LONGEST_SLEEP_S), (False, UNSUBSCRIBED_SLEEP_S)])
def test_a_long_sleep_is_cut_and_aims_at_nothing(next_us: int | None, is_subscribed: bool, longest: float) -> None:
    seconds, until_us = sleep(answer(next_us), Lead(), is_subscribed=is_subscribed)
    assert longest * 0.9 <= seconds <= longest
    assert until_us is None


def test_the_lead_comes_to_where_one_wake_in_some_ten_is_early() -> None:
    chance = random.Random(1)
    lead, early = Lead(), 0
    for wake in range(5000):
        late_us = 300 + chance.expovariate(1 / 150) - lead.us
        lead.learn(int(late_us))
        early += wake >= 500 and late_us < 0
    assert 300 < lead.us < 400
    assert 0.05 < early / 4500 < 0.15


def test_what_is_late_now_and_then_changes_the_lead_little() -> None:
    lead = Lead()
    for _ in range(3):
        lead.learn(10**9)
    assert lead.us < 300
    for _ in range(1000):
        lead.learn(10**9)
    assert lead.us == MOST_LEAD_US


def test_the_lead_is_never_below_nothing() -> None:
    lead = Lead()
    for _ in range(10):
        lead.learn(-(10**9))
    assert lead.us == 0


def test_batches_double_while_they_are_full() -> None:
    sizer = BatchSizer()
    sizer.moved(sizer.limit - 1, took_s=0.0)
    assert sizer.limit == LEAST_BATCH
    for _ in range(5):
        sizer.moved(sizer.limit, took_s=SLOW_S / 2)
    assert sizer.limit == MAX_BATCH


def test_slow_trips_halve_the_batch_down_to_one_that_is_worth_its_trip() -> None:
    sizer = BatchSizer(MAX_BATCH)
    sizer.moved(MAX_BATCH, took_s=SLOW_S * 2)
    assert sizer.limit == MAX_BATCH // 2
    # the link or the machine is slow, not the batch
    for _ in range(20):
        sizer.moved(sizer.limit, took_s=SLOW_S * 2)
    assert sizer.limit == LEAST_BATCH


@pytest.mark.parametrize("since_s", [0.0001, 0.001, 0.0013, 0.005])
def test_a_poller_rests_after_a_dispatch_of_a_hot_shard_only(since_s: float) -> None:
    hot = HOT_PER_S * max(since_s, 0.001)
    assert BatchSizer.rest_s(int(hot) - 1, since_s) == 0.0
    assert BatchSizer.rest_s(int(hot) + 1, since_s) == REST_S


@given(st.integers(0, MAX_BATCH), st.floats(0, 30))
def test_a_rest_is_short_and_gathers_no_more_than_a_batch(done: int, since_s: float) -> None:
    rest_s = BatchSizer.rest_s(done, since_s)
    assert 0 <= rest_s <= REST_S
    assert rest_s * done / max(since_s, 0.001) <= WORTH_A_TRIP * 1.0001 < LEAST_BATCH
