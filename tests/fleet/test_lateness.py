"""The histogram of latenesses never reports less than the truth, and never much more."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from shardq.core.fleet.lateness import Lateness, LatenessRecorder

MS = st.integers(0, 10_000_000)


def noted(values: list[int]) -> Lateness:
    results = LatenessRecorder()
    for value in values:
        results.note(1, oldest_ms=value, newest_ms=value)
    return results.snapshot()


@given(st.lists(MS, min_size=1), st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_an_eighth_above_the_truth(values: list[int], share: float) -> None:
    true = sorted(values)[math.ceil(share * len(values)) - 1]
    shown = noted(values).quantile_ms(share)
    assert shown is not None
    assert true <= shown <= true * 9 / 8


@given(st.lists(st.lists(MS)))
def test_the_total_is_that_of_all_values_together(parts: list[list[int]]) -> None:
    assert Lateness.total(map(noted, parts)) == noted([value for part in parts for value in part])


def test_nothing_was_late() -> None:
    empty = LatenessRecorder().snapshot()
    assert (empty.count, empty.early, empty.p50_ms, empty.p99_ms, empty.max_ms) == (0, 0, None, None, None)


def test_a_batch_counts_as_late_as_its_oldest() -> None:
    results = LatenessRecorder()
    results.note(99, oldest_ms=3, newest_ms=0)
    results.note(1, oldest_ms=12, newest_ms=12)
    seen = results.snapshot()
    assert (seen.count, seen.p50_ms, seen.p99_ms, seen.max_ms) == (100, 3, 3, 12)


def test_what_is_early_is_counted() -> None:
    results = LatenessRecorder()
    results.note(2, oldest_ms=5, newest_ms=-1)
    assert results.snapshot().early == 2


def test_beyond_the_longest_is_the_longest() -> None:
    assert noted([1 << 60]).max_ms == (1 << 36) - 1


def test_what_came_since_an_earlier_look() -> None:
    recorder = LatenessRecorder()
    recorder.note(3, oldest_ms=5, newest_ms=0)
    before = recorder.snapshot()
    recorder.note(2, oldest_ms=40, newest_ms=0)
    since = recorder.snapshot().since(before)
    assert (since.count, since.p50_ms) == (2, 43)
    assert recorder.snapshot().since(Lateness()).count == 5
    assert before.since(before).count == 0
