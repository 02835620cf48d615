"""A consumer claims ahead for quick programs, as much as they take in a moment, and nothing for slow ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.core.consumer.claim_state import ClaimNotes
from shardq.core.consumer.prefetch import AHEAD_S, LEASE_SHARE, MOST_HELD, STALE_S, Ahead, BegunClaim, Pace
from shardq.core.model.task import Delivery

LONG_LEASE_S = 60.0


def after(mean_s: float, *, count: int = 10, lease_s: float = LONG_LEASE_S, turns: int = 5) -> Pace:
    """What it has learnt of a program that works so long on each delivery."""
    pace, now = Pace(lease_s), 100.0
    for _ in range(turns):
        pace.handed(count, now)
        now += count * mean_s
        pace.back(now)
        # a claim that waits is no work
        now += 50.0
    return pace


def test_nothing_for_one_that_it_does_not_know() -> None:
    pace = Pace(LONG_LEASE_S)
    assert pace.size(1) == 0
    pace.handed(0, 1.0)
    pace.back(1.0)
    assert pace.size(1) == 0


def test_as_much_as_is_asked_for_by_one_that_asks_for_much() -> None:
    assert after(0.00001).size(500) == 500


def test_more_than_is_asked_for_by_one_that_asks_for_little() -> None:
    assert after(0.0001).size(1) == MOST_HELD
    assert after(0.005).size(1) == pytest.approx(AHEAD_S / 0.005, abs=1)


def test_nothing_for_one_that_is_slow() -> None:
    assert after(AHEAD_S * 1.1).size(1) == 0
    assert after(0.001).size(500) == 0


def test_a_part_of_a_short_lease() -> None:
    lease_s = AHEAD_S
    assert after(lease_s / LEASE_SHARE * 1.1, lease_s=lease_s).size(1) == 0
    assert after(lease_s / LEASE_SHARE * 0.9, lease_s=lease_s).size(1) == 1


def test_a_slower_pace_counts_at_once() -> None:
    pace = after(0.0001)
    pace.handed(1, 1000.0)
    pace.back(1001.0)
    assert pace.size(1) == 0


@given(mean_s=st.floats(1e-7, 10), max=st.integers(1, 1000), lease_s=st.floats(0.01, 3600))
def test_never_more_than_the_work_of_a_moment(mean_s: float, max: int, lease_s: float) -> None:
    size = after(mean_s, lease_s=lease_s).size(max)
    assert size == 0 or max <= size
    assert size * mean_s <= min(AHEAD_S, lease_s / LEASE_SHARE) * 1.01


def begun(since: float) -> BegunClaim[str]:
    return BegunClaim("under way", ClaimNotes(), since)


def delivery(number: int) -> Delivery:
    return Delivery(
        id=f"{number}", topic="", payload=None, attempt=1, headers={}, token="t", shard=0, failures=0, lapses=0, tags=()
    )


def quick(*, wanted: int) -> Ahead[str]:
    """What a quick program that asks for so many has ahead: nothing yet."""
    ahead = Ahead[str](LONG_LEASE_S)
    ahead.pace, ahead.wanted = after(0.00001), wanted
    return ahead


def test_one_is_under_way_at_a_time() -> None:
    ahead = quick(wanted=500)
    assert ahead.filled(500, lambda _: begun(100.0))
    assert not ahead.filled(500, lambda _: begun(100.0))
    assert ahead.take_begun(100.0) is not None
    assert not ahead.any


def test_the_next_is_begun_when_half_is_taken() -> None:
    ahead = quick(wanted=1)
    assert not ahead.filled(MOST_HELD, lambda _: begun(100.0)), "its answer is not asked for yet"
    ahead.hold([delivery(number) for number in range(MOST_HELD)], 100.0)
    while not ahead.begin(lambda _: begun(100.0)):
        (taken,) = ahead.take(1, 100.0)
    assert taken.id == str(MOST_HELD // 2 - 1)


def test_none_is_begun_when_there_was_too_little() -> None:
    ahead = quick(wanted=1)
    assert not ahead.begin(lambda _: begun(100.0))


def test_what_is_stale_is_not_handed_out() -> None:
    ahead = quick(wanted=1)
    ahead.hold([delivery(1)], 100.0)
    assert not ahead.stale(100.0 + STALE_S * 0.9)
    assert ahead.stale(100.0 + STALE_S * 1.1)
    assert ahead.take(1, 100.0 + STALE_S * 1.1) == []
    _, rest = ahead.empty()
    assert [back.id for _, backs in rest.values() for back in backs] == ["1"]
    assert not ahead.any


def test_a_claim_under_way_that_is_stale_gives_back_what_comes() -> None:
    ahead = quick(wanted=1)
    assert ahead.filled(1, lambda _: begun(100.0))
    assert ahead.take_begun(100.0 + STALE_S * 1.1) is None
    taken, _ = ahead.empty()
    assert taken is not None
    assert taken.notes.caller_left


def test_closed_it_begins_none() -> None:
    ahead = quick(wanted=1)
    ahead.close()
    assert not ahead.filled(1, lambda _: begun(100.0))
