"""Numbers and times as text: the filters of templates."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any


def number(value: float | None) -> str:
    """
    >>> number(None), number(0), number(1234567), number(12.0)
    ('–', '0', '1,234,567', '12')
    """
    return "–" if value is None else f"{value:,.0f}"


def per_second(value: float | None) -> str:
    """
    >>> per_second(None), per_second(0.0), per_second(0.25), per_second(1234.5)
    ('–', '0', '0.25', '1,234')
    """
    if value is None:
        return "–"
    return f"{value:.2g}" if 0 < value < 1 else f"{value:,.0f}"


def milliseconds(value: float | None) -> str:
    """
    >>> milliseconds(None), milliseconds(0), milliseconds(12), milliseconds(1234), milliseconds(75_000)
    ('–', '<1 ms', '12 ms', '1.2 s', '75 s')
    """
    if value is None:
        return "–"
    if value < 1000:
        return f"{value:.0f} ms" if value >= 1 else "<1 ms"
    return duration(value / 1000)


def duration(seconds: float | None) -> str:
    """A length of time in the largest unit of which it has two or more.

    >>> duration(None), duration(0.25), duration(75), duration(7200), duration(200_000)
    ('–', '0.2 s', '75 s', '2 h', '2 d')
    """
    if seconds is None:
        return "–"
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(count: int) -> str:
    """
    >>> size(999), size(123_456), size(7_300_000), size(2_000_000_000)
    ('999 B', '123 kB', '7.3 MB', '2.0 GB')
    """
    for unit, least in (("GB", 1e9), ("MB", 1e6)):
        if count >= least:
            return f"{count / least:,.1f} {unit}"
    return f"{count / 1000:.0f} kB" if count >= 1000 else f"{count} B"


def instant(value: dt.datetime | None) -> str:
    """In UTC, to the second.

    >>> instant(dt.datetime(2026, 2, 3, 4, 5, 6, tzinfo=dt.UTC))
    '2026-02-03 04:05:06'
    """
    return "–" if value is None else f"{value.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S}"


def counted(count: int, what: str) -> str:
    """
    >>> counted(0, "shard"), counted(1, "shard"), counted(1200, "shard")
    ('no shards', '1 shard', '1,200 shards')
    """
    return f"{f'{count:,}' if count else 'no'} {what}{'' if count == 1 else 's'}"


def points(values: Iterable[float], width: int, height: int) -> str:
    """A line through these values, as the points of an SVG polyline, the newest at the right. It has a margin of 2.

    >>> points([0, 5, 10], 24, 14)
    '2,12 12,7 22,2'
    """
    shown = list(values)
    most = max(shown, default=0) or 1
    step = (width - 4) / max(1, len(shown) - 1)
    return " ".join(
        f"{2 + at * step:.4g},{height - 2 - (height - 4) * value / most:.4g}" for at, value in enumerate(shown)
    )


FILTERS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (number, per_second, milliseconds, duration, size, instant, counted, points)
}
