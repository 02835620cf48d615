"""Compares what falls due with what workers can handle: the first minute, hour or day with more, in words. Pure. Called
by ``shardq forecast`` and the dashboard.
"""

from __future__ import annotations

import datetime as dt
import re

from shardq.listing.forecast import Forecast, Horizon

LABELS: dict[Horizon, str] = {"hour": "%H:%M", "day": "%m-%d %H:%M", "month": "%Y-%m-%d"}
NAMES: dict[Horizon, str] = {"hour": "minute", "day": "hour", "month": "day"}
_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(?:/\s*([smh]))?", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600}


def rate(text: str) -> float:
    """Reads tasks a second. Raises ValueError.

    >>> rate("500"), rate("500/s"), rate("90/m")
    (500.0, 500.0, 1.5)
    """
    found = _RATE.fullmatch(text.strip())
    if not found or float(found[1]) <= 0:
        raise ValueError(f"{text!r:.80} is not a rate above 0; write tasks a second, or a minute: 500/s, 500, 30000/m")
    return float(found[1]) / _UNITS[found[2] or "s"]


def exceeded(found: Forecast, capacity: float) -> tuple[dt.datetime, int] | None:
    """The first bucket in which more falls due than the fleet can handle in its time."""
    most = capacity * found.step.total_seconds()
    return next((bucket for bucket in found.buckets if bucket[1] > most), None)


def judged(found: Forecast, horizon: Horizon, capacity: float, over: tuple[dt.datetime, int] | None) -> str:
    step_s, name = found.step.total_seconds(), NAMES[horizon]
    handled = f"{capacity:,g} tasks a second are {capacity * step_s:,.0f} in {'an' if name == 'hour' else 'a'} {name}"
    if over is None:
        return f"{handled}: no {name} has more"
    start, count = over
    return (
        f"{handled}: the first {name} with more is {start.strftime(LABELS[horizon])}, when {count:,} fall due, "
        f"{count / step_s:,.1f} a second"
    )
