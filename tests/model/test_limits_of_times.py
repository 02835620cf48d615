"""Every check of delays, instants and lengths of time: what passes, what is refused, and the error and its words."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq import errors
from shardq.core.model import checks
from shardq.core.model.checks import MAX_AT_MS, MAX_DELAY_S, due_spec

UTC = dt.UTC
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)
DAY_BEHIND = dt.timezone(-dt.timedelta(hours=23))
NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("delay", "word"),
    [
        (None, 0),
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (1, -1000),
        (1.5, -1500),
        (1800, -1_800_000),
        (0.001, -1),
        (0.0011, -2),
        (0.0000001, 0),
        (0.000002, -1),
        (0.069, -69),  # 0.069 * 1000 is 69.00000000000001
        (2.3, -2300),  # 2.3 * 1000 is 2299.9999999999995
        (1.001, -1001),
        (MAX_DELAY_S, -MAX_DELAY_S * 1000),
        (dt.timedelta(0), 0),
        (dt.timedelta(seconds=2), -2000),
        (dt.timedelta(microseconds=1), -1),
        (dt.timedelta(milliseconds=5, microseconds=1), -6),
        (dt.timedelta(seconds=MAX_DELAY_S), -MAX_DELAY_S * 1000),
    ],
)
def test_delays(delay: Any, word: int) -> None:
    found = due_spec(delay, None)
    assert type(found) is int
    assert found == word


@pytest.mark.parametrize(
    ("at", "word"),
    [
        (0, 1),
        (-5, 1),
        (-(10**400), 1),
        (-1e300, 1),
        (0.0001, 1),
        (1, 1000),
        (1.0001, 1001),
        (1_700_000_000, 1_700_000_000_000),
        (1_700_000_000.123, 1_700_000_000_123),
        (1_700_000_000.1234, 1_700_000_000_124),
        (MAX_AT_MS / 1000, MAX_AT_MS),
        (EPOCH, 1),
        (dt.datetime(1, 1, 1, tzinfo=UTC), 1),
        (EPOCH + dt.timedelta(seconds=1), 1000),
        (EPOCH + dt.timedelta(seconds=1, microseconds=1), 1001),
        (dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), 1),
        (dt.datetime(1970, 1, 1, 1, tzinfo=UTC), 3_600_000),
        (LAST, MAX_AT_MS),
    ],
)
def test_instants(at: Any, word: int) -> None:
    found = due_spec(None, at)
    assert type(found) is int
    assert found == word


@given(st.integers(0, 10**13))
def test_a_delay_of_whole_milliseconds_stays_one(ms: int) -> None:
    assert due_spec(ms / 1000, None) == -ms
    assert due_spec(dt.timedelta(milliseconds=ms), None) == -ms


@given(st.integers(1, MAX_AT_MS))
def test_an_instant_of_whole_milliseconds_stays_one(ms: int) -> None:
    assert due_spec(None, EPOCH + dt.timedelta(milliseconds=ms)) == ms
    if ms < 2**42:
        assert due_spec(None, ms / 1000) == ms


@given(st.floats(0, 10**9))
def test_a_delay_is_never_cut_by_more_than_a_microsecond_nor_drawn_out_by_a_millisecond(delay: float) -> None:
    exact_ms = Fraction(delay) * 1000
    assert -Fraction(1, 1000) <= -due_spec(delay, None) - exact_ms < 1


@given(st.timedeltas(dt.timedelta(0), dt.timedelta(seconds=MAX_DELAY_S)))
def test_a_timedelta_is_rounded_up_exactly(delay: dt.timedelta) -> None:
    micros = delay // dt.timedelta(microseconds=1)
    assert -due_spec(delay, None) == math.ceil(Fraction(micros, 1000))


@given(st.datetimes(dt.datetime(1970, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(UTC)))
def test_a_datetime_is_rounded_up_exactly(at: dt.datetime) -> None:
    micros = (at - EPOCH) // dt.timedelta(microseconds=1)
    assert due_spec(None, at) == math.ceil(Fraction(micros, 1000))


class Seconds(float):
    """A float of another type, as numpy's are."""


class Count(int):
    """An int of another type."""


def test_numbers_of_other_types_are_numbers() -> None:
    assert due_spec(Seconds(1.5), None) == -1500
    assert due_spec(Count(2), None) == -2000
    with pytest.raises(errors.InvalidDelay):
        due_spec(Seconds("nan"), None)


OUT_OF_RANGE = r"; it must be from 0 to 249134400000 seconds \(7,900 years\): use 0, or none, for a task that is"
NOT_A_DELAY = "; give seconds as a number, or a timedelta"
TOO_LATE = r"; it must be an instant before the end of the year 9999: an aware datetime, or seconds \(not milli"
NOT_AN_INSTANT = "; give an aware datetime, or epoch seconds as a number"


@pytest.mark.parametrize(
    ("delay", "shown", "advice"),
    [
        (-1, "-1", OUT_OF_RANGE),
        (-0.001, "-0.001", OUT_OF_RANGE),
        (NAN, "nan", OUT_OF_RANGE),
        (INF, "inf", OUT_OF_RANGE),
        (-INF, "-inf", OUT_OF_RANGE),
        (MAX_DELAY_S + 1, "249134400001", OUT_OF_RANGE),
        (dt.timedelta(microseconds=-1), "datetime.timedelta", OUT_OF_RANGE),
        (dt.timedelta.max, "datetime.timedelta", OUT_OF_RANGE),
        (dt.timedelta(seconds=MAX_DELAY_S, microseconds=1), "datetime.timedelta", OUT_OF_RANGE),
        (True, "True", NOT_A_DELAY),
        ("5", "'5'", NOT_A_DELAY),
        (Decimal(5), r"Decimal\('5'\)", NOT_A_DELAY),
        ([], r"\[\]", NOT_A_DELAY),
        (dt.datetime.now(UTC), "datetime.datetime", NOT_A_DELAY),
        ("x" * 5000, "'x{78}…", NOT_A_DELAY),
    ],
)
def test_delays_refused(delay: Any, shown: str, advice: str) -> None:
    with pytest.raises(errors.InvalidDelay, match=rf"^a delay can't be {shown}.*{advice}"):
        due_spec(delay, None)


@pytest.mark.parametrize(
    ("at", "shown", "advice"),
    [
        (NAN, "nan", TOO_LATE),
        (INF, "inf", TOO_LATE),
        (-INF, "-inf", TOO_LATE),
        (1_700_000_000_000, "1700000000000", TOO_LATE),
        (253_402_300_800, "253402300800", TOO_LATE),
        (LAST + dt.timedelta(microseconds=1), "datetime.datetime", TOO_LATE),
        (dt.datetime(9999, 12, 31, 23, tzinfo=DAY_BEHIND), "datetime.datetime", TOO_LATE),
        (True, "True", NOT_AN_INSTANT),
        ("2030-01-01", "'2030-01-01'", NOT_AN_INSTANT),
        (dt.date(2030, 1, 1), "datetime.date", NOT_AN_INSTANT),
        (dt.timedelta(1), "datetime.timedelta", NOT_AN_INSTANT),
    ],
)
def test_instants_refused(at: Any, shown: str, advice: str) -> None:
    with pytest.raises(errors.InvalidDelay, match=rf"^at can't be {shown}.*{advice}"):
        due_spec(None, at)


def test_numbers_too_long_to_print_are_refused_as_well() -> None:
    for sign in (1, -1):
        with pytest.raises(errors.InvalidDelay, match=r"^a delay can't be an int of 16610 bits; it must be from"):
            due_spec(sign * 10**5000, None)
        with pytest.raises(errors.InvalidShardCount, match=r"^there can't be an int of 16610 bits shards"):
            checks.check_shards(sign * 10**5000)
    with pytest.raises(errors.InvalidDelay, match=r"^at can't be an int of 16610 bits; it must be an instant"):
        due_spec(None, 10**5000)
    assert due_spec(None, -(10**5000)) == 1


def test_naive_datetimes_are_refused() -> None:
    with pytest.raises(errors.NaiveDatetime, match=r"has no time zone, .*; give an aware datetime, such as"):
        due_spec(None, dt.datetime(2030, 1, 1))


@pytest.mark.parametrize("delay", [0, 5, NAN, dt.timedelta(1)])
@pytest.mark.parametrize("at", [0, LAST])
def test_delay_and_at_are_refused_together(delay: Any, at: Any) -> None:
    with pytest.raises(errors.DelayAndAt, match=r"both delay=.* and at=.* were given; .*: give only one of them"):
        due_spec(delay, at)


@pytest.mark.parametrize(
    ("dedup", "ms"), [(None, None), (1, 1000), (0.5, 500), (1e-9, 1), (dt.timedelta(hours=1), 3_600_000)]
)
def test_dedup_windows(dedup: Any, ms: int | None) -> None:
    assert checks.check_dedup(dedup, "order-1") == ms


def test_no_dedup_needs_no_id() -> None:
    assert checks.check_dedup(None, None) is None


def test_dedup_needs_an_id() -> None:
    with pytest.raises(errors.DedupWithoutId, match=r"dedup=60 was given without id=; .*: give one, the same for"):
        checks.check_dedup(60, None)


BAD_DURATIONS = [0, -1, NAN, INF, -INF, True, "5", MAX_DELAY_S + 1, dt.timedelta(0), dt.timedelta.max, 10**400]


@pytest.mark.parametrize("dedup", BAD_DURATIONS, ids=lambda value: repr(value)[:20])
def test_dedup_windows_refused(dedup: Any) -> None:
    with pytest.raises(
        errors.InvalidOption, match=r"^dedup can't be .*; give more than 0 and at most 249134400000 seconds"
    ):
        checks.check_dedup(dedup, "order-1")


def test_a_duration_says_which_option_was_wrong() -> None:
    assert checks.duration_ms(30, "lease") == 30_000
    with pytest.raises(errors.InvalidOption, match=r"^lease can't be 0; give more than 0"):
        checks.duration_ms(0, "lease")
