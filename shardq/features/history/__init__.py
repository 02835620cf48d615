"""The past of an engine, as ``engine.history()`` returns it: the last minutes, hours or days, in the same buckets in
which a forecast goes on.

A dispatcher writes a row each minute into one string of fixed size, a ring of the minutes of a day and of the hours of
thirty days. ``stored`` is its form, ``recorder`` the thread that writes it.
"""

from __future__ import annotations

import datetime as dt
from functools import reduce
from itertools import pairwise
from typing import Any

import msgspec

from shardq.core.calls import control
from shardq.core.fleet.lateness import MAX_LATE_S
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.features.history.stored import (
    HOUR_MS,
    HOURS,
    MINUTE_MS,
    MINUTES,
    ROW_BYTES,
    Row,
    hour_at,
    merged,
    minute_at,
    rows_of,
)
from shardq.features.listing.forecast import STEPS, Horizon, check_horizon

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)


class HistoryPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One minute, hour or day of the past.

    >>> for point in engine.history("day").points:
    ...     print(point.start, point.dispatched, point.handled, point.failed, point.died, point.late_p99_ms)
    """

    start: dt.datetime
    """In UTC."""
    minutes: int
    """The minutes of it that were recorded. 0: no dispatcher ran, or none could write; all that follows is None."""
    shards: int | None = None
    """At its end."""
    unseen: int | None = None
    """The shards that could not be read, at the most: they are in no count."""
    scheduled: int | None = None
    """Tasks that were scheduled at its end."""
    ready: int | None = None
    """Tasks that were ready at its end."""
    dispatched: int | None = None
    """Tasks that became ready."""
    handled: int | None = None
    """Tasks whose handler returned, as workers reported."""
    failed: int | None = None
    """Attempts that failed, as workers reported."""
    died: int | None = None
    """Tasks that died."""
    late_p99_ms: int | None = None
    """The 99th percentile of dispatch lateness; of an hour or a day that of its worst minute. None also where nothing
    was dispatched.
    """


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The past of an engine.

    >>> past = engine.history("hour")
    >>> print(past.now, past.step, sum(point.dispatched or 0 for point in past.points))
    """

    now: dt.datetime
    """The server's clock, in UTC."""
    step: dt.timedelta
    """The length of a point: a minute, an hour or a day."""
    points: list[HistoryPoint]
    """The oldest first. The last one is under way, and is the first bucket of a forecast, too."""


_GRACE = dt.timedelta(seconds=30)
"""The time after a minute in which its row comes."""


def first_known(past: History) -> int:
    """The place of the first point that was recorded; behind the last one if none was."""
    return next((at for at, point in enumerate(past.points) if point.minutes), len(past.points))


def incidents(past: History) -> dict[int, str]:
    """The place of each point in which something was wrong → what."""
    found: dict[int, str] = {}
    first = first_known(past)
    for at, point in enumerate(past.points):
        late_ms = point.late_p99_ms or 0
        parts = [f"{point.unseen:,} shards could not be read"] if point.unseen else []
        parts += [f"dispatched {late_ms / 1000:,.1f} s late (p99)"] if late_ms >= 1000 * MAX_LATE_S else []
        past_min = min(past.step, past.now - _GRACE - point.start) // dt.timedelta(minutes=1)
        unrecorded = past_min - point.minutes
        # A row tells of the minutes since the last, so one of an hour may be in the next.
        if at > first and unrecorded > (1 if point.minutes else 0):
            parts.append(f"not recorded for {unrecorded:,} min: no dispatcher ran, or none could write")
        if parts:
            found[at] = ", ".join(parts)
    return found


def resizes(past: History) -> dict[int, str]:
    """The place of each point in which the number of shards changed → from which to which."""
    known = [(at, point.shards) for at, point in enumerate(past.points) if point.shards is not None]
    return {at: f"{before} to {now} shards" for (_, before), (at, now) in pairwise(known) if before != now}


def most_handled(past: History) -> float | None:
    """The tasks of a second that workers handled in the best of the points; None if they handled none."""
    return max((point.handled / point.minutes / 60 for point in past.points if point.handled), default=None)


def read_history(cache: TopologyCache, horizon: Horizon) -> Operation[History]:
    check_horizon(horizon)
    keys = cache.control
    now_ms = int((yield control.clock_ms(keys).briefly()))
    step, count = STEPS[horizon]
    by_hours = horizon == "month"
    offset, length = (hour_at(0), HOURS) if by_hours else (minute_at(0), MINUTES)
    rows = rows_of((yield control.read_history(keys, offset, length * ROW_BYTES).briefly()))
    row_ms = HOUR_MS if by_hours else MINUTE_MS
    step_ms = int(step.total_seconds() * 1000)
    first = now_ms // step_ms - count + 1
    buckets: dict[int, list[Row]] = {}
    for number in sorted(rows):
        buckets.setdefault(number * row_ms // step_ms, []).append(rows[number])
    return History(
        now=_at(now_ms),
        step=step,
        points=[_point(_at(at * step_ms), buckets.get(at, [])) for at in range(first, first + count)],
    )


def _at(ms: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=ms)


def _point(start: dt.datetime, rows: list[Row]) -> HistoryPoint:
    if not rows:
        return HistoryPoint(start=start, minutes=0)
    row = reduce(merged, rows)
    fields: dict[str, Any] = row._asdict() | {"late_p99_ms": row.late_p99_ms if row.late_p99_ms >= 0 else None}
    del fields["number"]
    return HistoryPoint(start=start, **fields)
