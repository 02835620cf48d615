"""forecast: its bars fit the terminal, and it says where more falls due than is handled."""

from __future__ import annotations

import datetime as dt

import pytest

from shardq import Engine, Forecast, Task
from shardq.cli.forecast import drawn
from shardq.features.listing.forecast import exceeded
from tests.cli.shell import Shell

START = dt.datetime(2030, 1, 31, 23, tzinfo=dt.UTC)
STEP = dt.timedelta(minutes=1)


def forecast(*counts: int) -> Forecast:
    buckets = [(START + n * STEP, count) for n, count in enumerate(counts)]
    return Forecast(now=START, step=STEP, overdue=0, buckets=buckets, later=0)


def test_bars() -> None:
    assert drawn(forecast(40, 1, 0, 20), "%H:%M", width=32) == [
        f"23:00  40  {'#' * 20}",
        "23:01   1  #",
        "23:02   0",
        f"23:03  20  {'#' * 10}",
    ]
    # with a line at 30 tasks a minute
    assert drawn(forecast(40, 1, 0, 20), "%H:%M", width=32, capacity=0.5) == [
        f"23:00  40  {'#' * 15}|{'#' * 4}",
        f"23:01   1  #{' ' * 14}|",
        f"23:02   0  {' ' * 15}|",
        f"23:03  20  {'#' * 10}{' ' * 5}|",
    ]
    assert drawn(forecast(40, 1), "%H:%M", width=12) == ["23:00  40", "23:01   1"]
    assert drawn(forecast(0, 0), "%H:%M", width=80) == ["23:00  0", "23:01  0"]


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for capacity in (None, 0.1, 100.0, 1e6):
        lines = drawn(forecast(1_234_567, 1, 60_000), "%Y-%m-%d", width=width, capacity=capacity)
        assert max(map(len, lines)) <= max(width, 24)


def test_the_first_bucket_with_more() -> None:
    assert exceeded(forecast(60, 61, 100), 1.0) == (START + STEP, 61)
    assert exceeded(forecast(60, 60), 1.0) is None


def test_the_command(shardq: Shell, engine: Engine) -> None:
    engine.push_many([Task(n, delay=1800) for n in range(300)])
    engine.push_many([Task(n, delay=9000) for n in range(5)])
    done = shardq.run("forecast", "--capacity", "0.12k/min")
    assert (done.code, done.err) == (0, "")
    first, *bars, clock, words = done.lines
    assert first == "305 scheduled: 0 overdue, 300 within an hour, 5 later"
    assert len(bars) == 60
    assert max(map(len, bars)) <= 80
    assert clock.startswith("(UTC; it is 20")
    assert words.startswith("2 tasks a second are 120 in a minute: the first minute with more is ")
    told = shardq.run("forecast", "day", "--json").object
    assert (told["total"], told["overdue"], told["later"], len(told["buckets"])) == (305, 0, 0, 24)
    assert (told["capacity"], told["exceeded"]) == (None, None)
