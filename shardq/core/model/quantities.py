"""Reads rates (50000/s, 3M/day) and sizes (200, 4KiB) as people write them. Called by ``shardq plan`` and
``forecast``, and by the dashboard.
"""

from __future__ import annotations

import re

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
            f"{text!r:.80} is not a rate above 0; write tasks for each s, min, h or day: 500/s, 50k/s, 3M/day"
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
            f"{text!r:.80} is not a size; write bytes, or a number with kB, MB, GB, KiB, MiB or GiB: 200, 4KiB"
        )
    unit: int = (1024 if found[3] else 1000) ** _POWERS[found[2]]
    return round(float(found[1]) * unit)
