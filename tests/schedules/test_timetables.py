"""Occurrences of cron expressions and intervals: also where the clocks of a time zone go ahead and back."""

from __future__ import annotations

import datetime as dt
import sys
from collections.abc import Iterator
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardq import Every
from shardq.errors import InvalidOption, MissingPackage
from shardq.features.schedules.every import CronTimetable, IntervalTimetable, Timetable

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE, HOUR = 60_000, 3_600_000


def ms(text: str) -> int:
    return round(dt.datetime.fromisoformat(text).timestamp() * 1000)


def between(timetable: Timetable, first: str, last: str) -> list[str]:
    """The occurrences after the first instant and up to the last, with the offset of Berlin."""
    end = ms(last)
    found = takewhile(lambda at: at <= end, timetable.after(ms(first)))
    return [f"{dt.datetime.fromtimestamp(at / 1000, BERLIN):%d %H:%M%z}" for at in found]


def berlin(cron: str) -> CronTimetable:
    return CronTimetable(cron, "Europe/Berlin")


AHEAD = "2026-03-28T00:00+01:00", "2026-03-31T00:00+02:00"
"""On the 29th it is 3 o'clock where 2 o'clock would be."""
BACK = "2026-10-24T12:00+02:00", "2026-10-26T12:00+01:00"
"""On the 25th the hour from 2 o'clock comes twice."""


def test_the_hour_that_does_not_exist() -> None:
    daily = between(berlin("30 2 * * *"), *AHEAD)
    assert daily == ["28 02:30+0100", "29 03:00+0200", "30 02:30+0200"]
    assert between(berlin("0 3 * * *"), *AHEAD) == ["28 03:00+0100", "29 03:00+0200", "30 03:00+0200"]
    hourly = between(berlin("15 * * * *"), "2026-03-29T01:00+01:00", "2026-03-29T04:30+02:00")
    assert hourly == ["29 01:15+0100", "29 03:15+0200", "29 04:15+0200"]


def test_the_hour_that_comes_twice() -> None:
    assert between(berlin("30 2 * * *"), *BACK) == ["25 02:30+0200", "26 02:30+0100"]
    hourly = between(berlin("15 * * * *"), "2026-10-25T01:30+02:00", "2026-10-25T03:30+01:00")
    assert hourly == ["25 02:15+0200", "25 02:15+0100", "25 03:15+0100"]


@pytest.mark.parametrize("cron", ["30 2 * * *", "15 * * * *", "*/20 1-3 * * *", "0 */2 * * *", "* 2 * * *"])
@pytest.mark.parametrize("span", [AHEAD, BACK], ids=["ahead", "back"])
def test_wherever_one_begins_the_occurrences_are_the_same(cron: str, span: tuple[str, str]) -> None:
    timetable, (first, last) = berlin(cron), map(ms, span)
    every = list(takewhile(lambda at: at <= last, timetable.after(first)))
    assert every == sorted(set(every))
    for start in range(first, last, 7 * MINUTE):
        following = next((at for at in every if at > start), None)
        if following is not None:
            assert next(timetable.after(start)) == following


def test_a_second_before_the_minute() -> None:
    timetable = CronTimetable("*/20 * * * * *", "UTC")
    start = ms("2026-01-01T00:00:05+00:00")
    assert [at - start for at in islice(timetable.after(start), 3)] == [15_000, 35_000, 55_000]


def test_intervals_are_aligned_whenever_one_begins() -> None:
    timetable = IntervalTimetable(1500)
    assert list(islice(timetable.after(2999), 3)) == [3000, 4500, 6000]
    assert list(islice(timetable.after(3000), 2)) == [4500, 6000]


# ---- against the plainest way to say it

ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"]


@st.composite
def hourly(draw: st.DrawFn) -> tuple[str, set[int], set[int]]:
    """Jobs of every hour, on some days of the week, which follow the clock on the wall as it is."""
    minutes = draw(st.sets(st.integers(0, 59), min_size=1, max_size=4))
    days = draw(st.sets(st.integers(0, 6), min_size=1, max_size=7))
    return f"{','.join(map(str, sorted(minutes)))} * * * {','.join(map(str, sorted(days)))}", minutes, days


def brute(zone: str, minutes: set[int], days: set[int], start: int, end: int) -> Iterator[int]:
    tz = ZoneInfo(zone)
    for at in range(start // MINUTE * MINUTE, end, MINUTE):
        local = dt.datetime.fromtimestamp(at / 1000, tz)
        if at > start and local.minute in minutes and local.isoweekday() % 7 in days:
            yield at


@settings(max_examples=60)
@given(hourly(), st.sampled_from(ZONES), st.integers(ms("2025-01-01T00:00+00:00"), ms("2027-01-01T00:00+00:00")))
def test_as_the_clock_on_the_wall_says(job: tuple[str, set[int], set[int]], zone: str, start: int) -> None:
    cron, minutes, days = job
    end = start + 30 * HOUR
    found = list(takewhile(lambda at: at < end, CronTimetable(cron, zone).after(start)))
    assert found == list(brute(zone, minutes, days, start, end))


@given(st.integers(100, 10**9), st.integers(0, 2 * 10**12))
def test_an_interval_is_its_multiples(interval: int, start: int) -> None:
    found = list(islice(IntervalTimetable(interval).after(start), 3))
    assert all(at % interval == 0 for at in found)
    assert start < found[0] <= start + interval
    assert [found[0] + interval, found[0] + 2 * interval] == found[1:]


# ---- what is refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "a cron expression or an interval"),
        ({"cron": "* * * * *", "interval": 5}, "not both"),
        ({"cron": "every day"}, "cron can't be 'every day'.* write minute, hour"),
        ({"cron": 5}, "cron can't be 5"),
        ({"cron": "0 0 30 2 *"}, "cron can't be '0 0 30 2"),
        ({"cron": "* * * * *", "tz": "Europe/Atlantis"}, "tz can't be 'Europe/Atlantis'.*shardq.cron"),
        ({"cron": "* * * * *", "tz": "../etc/passwd"}, "tz can't be"),
        ({"cron": "* * * * *", "tz": "Europe"}, "tz can't be"),
        ({"interval": 5, "tz": "Europe/Berlin"}, "together with cron="),
        ({"interval": 0}, "interval can't be 0"),
        ({"interval": 0.05}, "from 0.1 s"),
        ({"interval": "5m"}, "interval can't be '5m'"),
        ({"interval": float("nan")}, "interval can't be nan"),
        ({"interval": dt.timedelta(days=1000)}, "400 days"),
        ({"interval": 5, "jitter": -1}, "jitter can't be -1"),
        ({"interval": 5, "jitter": 6}, "at most the time between two occurrences, which is 5 s"),
        ({"cron": "0,5 3 * * *", "jitter": 600}, "which is 300 s"),
        ({"interval": 5, "catch_up": "some"}, "catch_up can't be 'some'"),
    ],
)
def test_what_can_not_recur(given: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidOption, match=words):
        Every(**given)  # type: ignore[arg-type]  # on purpose


def test_what_recurs_in_short() -> None:
    assert Every.of("0 3 * * *") == Every(cron="0 3 * * *")
    assert Every.of(5) == Every(interval=5)
    assert Every.of(dt.timedelta(minutes=5)).interval_ms == 300_000
    for wrong in (True, None, b"0 3 * * *"):
        with pytest.raises(InvalidOption, match="give a cron expression, seconds, a timedelta"):
            Every.of(wrong)  # type: ignore[arg-type]  # on purpose


def test_a_missing_cronsim_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(MissingPackage, match=r"pip install 'shardq\[cron\]'"):
        Every(cron="* * * * *")
    Every(interval=5)
