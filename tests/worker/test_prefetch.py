"""A worker prefetches enough deliveries for quick handlers, and none for slow ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.consumer.prefetch import AHEAD_S
from shardq.delivery.prefetch import MOST_AHEAD, SLOW_S, Prefetch


def after(prefetch: Prefetch, *, rate: float, mean_s: float, seconds: float = 2.0, since: float = 100.0) -> Prefetch:
    """What it has learnt when handlers have gone on like this."""
    now, step = since, AHEAD_S
    while now < since + seconds:
        now += step
        prefetch.finished(max(1, int(rate * step)), max(1, int(rate * step)) * mean_s, now)
    return prefetch


def test_a_beginner_wants_one_for_each_hand() -> None:
    assert Prefetch(16).want(held=0, running=0) == 16
    assert Prefetch(16).want(held=0, running=10) == 6
    assert Prefetch(16).want(held=0, running=16) == 0


def test_quick_handlers_have_the_work_of_some_trips_ahead() -> None:
    prefetch = after(Prefetch(16), rate=10_000, mean_s=0.0001)
    assert prefetch.want(held=0, running=16) == pytest.approx(10_000 * AHEAD_S, rel=0.1)
    assert prefetch.want(held=10**6, running=16) == 0


def test_it_fetches_in_batches_not_one_by_one() -> None:
    prefetch = after(Prefetch(16), rate=10_000, mean_s=0.0001)
    target = prefetch.want(held=0, running=16)
    assert prefetch.want(held=target // 2 + 1, running=16) == 0
    assert prefetch.want(held=target // 2, running=16) == target - target // 2


@pytest.mark.parametrize("mean_s", [SLOW_S * 1.1, 1.0, 60.0])
def test_slow_handlers_have_nothing_ahead(mean_s: float) -> None:
    prefetch = after(Prefetch(16), rate=16 / mean_s, mean_s=mean_s)
    assert prefetch.want(held=0, running=16) == 0
    assert prefetch.want(held=0, running=15) == 1
    assert prefetch.want(held=1, running=15) == 0


def test_the_most_ahead_is_one_script_s_worth() -> None:
    prefetch = after(Prefetch(1), rate=10**6, mean_s=0.000001)
    assert prefetch.want(held=0, running=1) == MOST_AHEAD


def test_what_was_learnt_before_a_lull_is_old() -> None:
    prefetch = after(Prefetch(16), rate=10_000, mean_s=0.0001)
    prefetch.finished(1, 5.0, 200.0)
    assert prefetch.mean_s == pytest.approx(5.0)
    assert prefetch.want(held=0, running=16) == 0


def test_a_wrong_guess_is_not_made_again_at_once() -> None:
    prefetch = after(Prefetch(16), rate=10_000, mean_s=0.0001)
    prefetch.guessed_wrong()
    assert prefetch.want(held=0, running=16) == 0
    assert after(prefetch, rate=10_000, mean_s=0.0001, since=110.0).want(held=0, running=16) > 16


@given(
    concurrency=st.integers(1, 1000),
    rate=st.floats(0.1, 10**5),
    mean_s=st.floats(1e-6, 10),
    held=st.integers(0, 2000),
    running=st.integers(0, 1000),
)
def test_never_more_than_free_hands_and_the_work_ahead(
    concurrency: int, rate: float, mean_s: float, held: int, running: int
) -> None:
    running = min(running, concurrency)
    prefetch = after(Prefetch(concurrency), rate=rate, mean_s=mean_s, seconds=0.5)
    want = prefetch.want(held, running)
    assert 0 <= want <= max(0, concurrency - running - held + MOST_AHEAD)
    if prefetch.mean_s > SLOW_S:
        assert held + want <= max(held, concurrency - running)
    if not held and running < concurrency:
        assert want > 0
