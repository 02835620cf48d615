"""Durations as people write them."""

from __future__ import annotations

import datetime as dt

import pytest

from shardq.core.model.quantities import expiry, instant, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        (".5", 0.5),
        ("250ms", 0.25),
        ("90s", 90),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1w", 604800),
        (" 1.5 h ", 5400),
        ("1h30m", 5400),
        ("1w 2d 3h 4m 5s 6ms", 788645.006),
        ("1.5h0.5s", 5400.5),
    ],
)
def test_seconds(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize(
    "text", ["", "s", "-5", "5x", "1h30", "30m1h", "5m5m", "1h-5m", "1e3", "inf", "nan", "٣", "5 m 3", "1" * 30]
)
def test_no_seconds(text: str) -> None:
    with pytest.raises(ValueError, match="is not a length of time; write seconds, or numbers with"):
        seconds(text)


def test_instants() -> None:
    noon = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC)
    assert instant("2030-01-31T12:00:00Z") == noon
    assert instant("2030-01-31 14:00+02:00") == noon
    assert instant("1900000000.5") == 1900000000.5


@pytest.mark.parametrize("text", ["", "tomorrow", "2030-13-01T00:00:00Z", "-5", "inf"])
def test_no_instants(text: str) -> None:
    with pytest.raises(ValueError, match="is not an instant"):
        instant(text)


def test_expiries() -> None:
    assert expiry("1h30m") == 5400
    assert expiry("90") == 90
    assert expiry("2030-01-31T12:00:00Z") == dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC)
    for wrong in ("soon", "2030-01-31T12:00:00", "", "-5"):
        with pytest.raises(ValueError, match="write an instant like"):
            expiry(wrong)


def test_an_instant_needs_a_time_zone() -> None:
    with pytest.raises(ValueError, match="has no time zone"):
        instant("2030-01-31T12:00:00")
