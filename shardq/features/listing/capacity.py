"""Compares what falls due with what workers can handle: the first minute, hour or day with more, in words. Pure. Called
by ``shardq forecast`` and the dashboard.
"""

from __future__ import annotations

import datetime as dt

from shardq.features.listing.forecast import Forecast, Horizon

LABELS: dict[Horizon, str] = {"hour": "%H:%M", "day": "%m-%d %H:%M", "month": "%Y-%m-%d"}
NAMES: dict[Horizon, str] = {"hour": "minute", "day": "hour", "month": "day"}


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
