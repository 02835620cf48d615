"""Reads times (90, 90s, 5m, 1h30m, 1d), instants, rates (50000/s, 3M/day) and sizes (200, 4KiB) as people write them.
Called by the command and the dashboard.
"""

from __future__ import annotations

import datetime as dt
import re

from shardq.core.model.printable import quoted

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_PART = r"(\d{1,18}(?:\.\d{1,9})?|\.\d{1,9})\s*"
_DURATION = re.compile(rf"(?:{_PART}(?:ms|[smhdw])\s*)+", re.ASCII)
_PARTS = re.compile(rf"{_PART}(ms|[smhdw])", re.ASCII)
_SECONDS = re.compile(_PART, re.ASCII)
_NUMBER = re.compile(r"\d{1,18}(?:\.\d{1,9})?", re.ASCII)


def seconds(text: str) -> float:
    """Reads a length of time. Raises ValueError.

    >>> seconds("90"), seconds("1.5"), seconds("5m"), seconds("1h30m")
    (90.0, 1.5, 300.0, 5400.0)
    """
    text = text.strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    parts = [(float(number), _UNITS[unit]) for number, unit in _PARTS.findall(text)]
    units = [unit for _, unit in parts]
    # 5m10m and 30m1h are refused: each unit once, the largest first
    if not _DURATION.fullmatch(text) or units != sorted(set(units), reverse=True):
        raise ValueError(
            f"{quoted(text)} is not a length of time; write seconds, or numbers with w, d, h, m, s or ms: 90, 5m, 1h30m"
        )
    return sum(number * unit for number, unit in parts)


def instant(text: str) -> float | dt.datetime:
    """Reads an instant: ISO 8601 with a time zone, or seconds since 1970. Raises ValueError."""
    text = text.strip()
    # numbers first: fromisoformat refuses 2030, and reads 20300131 as a day
    if _NUMBER.fullmatch(text):
        return float(text)
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{quoted(text)} is not an instant; write it like 2030-01-31T12:00:00Z, or as seconds since 1970"
        ) from None
    if when.tzinfo is None:
        raise ValueError(
            f"{quoted(text)} has no time zone, so it names no instant; add Z for UTC, or an offset like +02:00"
        )
    return when


def expiry(text: str) -> float | dt.datetime:
    """Reads a length of time from now, or an instant that begins with its date. Raises ValueError."""
    try:
        return instant(text) if re.match(r"\s*\d{4}-", text) else seconds(text)
    except ValueError as exc:
        raise ValueError(f"{exc}; or write an instant like 2030-01-31T12:00:00Z") from None


Bound = float | dt.datetime | None  # seconds from now, below 0 before it; or an instant; or none


def due_range(text: str) -> tuple[Bound, Bound]:
    """Reads FROM..TO, each a length of time from now, an instant that begins with its date, or nothing. Raises
    ValueError.

    >>> due_range("..0"), due_range("-1h..30m"), due_range("1d..")
    ((None, 0.0), (-3600.0, 1800.0), (86400.0, None))
    """
    begin, dots, end = text.partition("..")
    if not dots or not (begin.strip() or end.strip()):
        raise ValueError(
            f"{quoted(text)} is not a range; write FROM..TO, where either may be left out: 0..1h, ..0 (due already), "
            "2030-01-31T00:00:00Z..2030-02-01T00:00:00Z"
        )
    return _bound(begin), _bound(end)


def _bound(text: str) -> Bound:
    text = text.strip()
    if not text:
        return None
    if text[0] == "-":
        return -seconds(text[1:])
    return expiry(text)


_RATE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kKM]?)\s*(?:/\s*([a-z]+))?", re.ASCII)
_THOUSANDS = {"": 1, "k": 1_000, "K": 1_000, "M": 1_000_000}
_PERIODS: dict[str | None, int] = {
    None: 1,
    **dict.fromkeys(("s", "sec", "second"), 1),
    **dict.fromkeys(("m", "min", "minute"), 60),
    **dict.fromkeys(("h", "hour"), 3_600),
    **dict.fromkeys(("d", "day"), 86_400),
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kKMGT]?)(i?)[bB]?", re.ASCII)
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


def rate(text: str) -> float:
    """Reads a number of tasks for each second, minute, hour or day. Returns tasks a second, more than 0. Raises
    ValueError.

    >>> rate("50000/s"), rate("50k/s"), rate("120/min"), rate("250")
    (50000.0, 50000.0, 2.0, 250.0)
    """
    found = _RATE.fullmatch(text.strip())
    per_s = 0.0
    if found and found[3] in _PERIODS:
        per_s = float(found[1]) * _THOUSANDS[found[2]] / _PERIODS[found[3]]
    if not per_s:
        raise ValueError(
            f"{quoted(text)} is not a rate above 0; write tasks for each s, min, h or day: 500/s, 50k/s, 3M/day"
        )
    return per_s


def size(text: str) -> int:
    """Reads bytes. Raises ValueError.

    >>> size("200"), size("4KiB"), size("1.5 kB"), size("8G")
    (200, 4096, 1500, 8000000000)
    """
    found = _SIZE.fullmatch(text.strip())
    if not found or (found[3] and not found[2]):
        raise ValueError(
            f"{quoted(text)} is not a size; write bytes, or a number with kB, MB, GB, KiB, MiB or GiB: 200, 4KiB"
        )
    unit: int = (1024 if found[3] else 1000) ** _POWERS[found[2]]
    return round(float(found[1]) * unit)
