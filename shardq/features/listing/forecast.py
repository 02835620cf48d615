"""How many tasks fall due, in the minutes of the next hour, the hours of the next day or the days of the next month.

Every shard counts its own, by its server's clock, in some 60 look-ups in a sorted set, however many tasks there are.
Shards are asked one after the other: a task that is moved meanwhile may count twice, or not at all.
"""

from __future__ import annotations

import datetime as dt
from functools import partial
from typing import Literal, get_args

import msgspec

from shardq.core.calls import listing
from shardq.core.model.printable import quoted
from shardq.core.operation import Operation, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_every_shard, call_shards
from shardq.errors import InvalidOption

Horizon = Literal["hour", "day", "month"]

STEPS: dict[Horizon, tuple[dt.timedelta, int]] = {
    "hour": (dt.timedelta(minutes=1), 60),
    "day": (dt.timedelta(hours=1), 24),
    "month": (dt.timedelta(days=1), 30),
}
"""The length of a bucket, and how many there are."""

LABELS: dict[Horizon, str] = {"hour": "%H:%M", "day": "%m-%d %H:%M", "month": "%Y-%m-%d"}
NAMES: dict[Horizon, str] = {"hour": "minute", "day": "hour", "month": "day"}

_EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
_MS = dt.timedelta(milliseconds=1)


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """The scheduled tasks by the time at which they fall due.

    >>> forecast = engine.forecast("day")
    >>> print(forecast.overdue, "are due already,", forecast.later, "later than a day")
    >>> for start, count in forecast.buckets:
    ...     print(start, count)
    """

    now: dt.datetime
    """The server's clock, in UTC."""
    step: dt.timedelta
    """The length of a bucket: a minute, an hour or a day."""
    overdue: int
    """Tasks that are due already, and wait for a dispatcher."""
    buckets: list[tuple[dt.datetime, int]]
    """The start of each bucket, in UTC, and the tasks that fall due in it. The first one is under way: of its tasks
    those count that are yet to fall due.
    """
    later: int
    """Tasks that fall due after the last bucket."""
    missing: tuple[int, ...] = ()
    """The shards that could not be read: their tasks are in no count."""

    @property
    def total(self) -> int:
        """All scheduled tasks."""
        return self.overdue + sum(count for _, count in self.buckets) + self.later


def check_horizon(horizon: str) -> None:
    if not isinstance(horizon, str) or horizon not in STEPS:
        allowed = ", ".join(map(repr, get_args(Horizon)))
        raise InvalidOption(f"a forecast of {quoted(horizon)} is not possible; use one of {allowed}")


def forecast(cache: TopologyCache, horizon: Horizon) -> Operation[Forecast]:
    step, steps = STEPS[horizon]
    step_ms = step // _MS
    # the buckets begin by one clock, and every shard that answers counts in the same ones
    clocks = yield from call_every_shard(cache, partial(listing.forecast, step_ms=step_ms, steps=0))
    known = succeeded(clocks)
    if not known:
        raise clocks[0][1]  # type: ignore[misc]  # it is an error: none answered
    clock = next(iter(known.values()))
    make = partial(listing.forecast, begin_ms=clock.begin_ms, step_ms=step_ms, steps=steps)
    answers = yield from call_shards(cache, {keys.shard: (keys, make) for keys in known})
    seen = succeeded(answers.items())
    counts = seen.values()
    begin = _EPOCH + clock.begin_ms * _MS
    return Forecast(
        now=_EPOCH + clock.now_us // 1000 * _MS,
        step=step,
        overdue=sum(each.overdue for each in counts),
        buckets=[(begin + n * step, sum(each.steps[n] for each in counts)) for n in range(steps)],
        later=sum(each.later for each in counts),
        missing=tuple(keys.shard for keys, _ in clocks if keys.shard not in seen),
    )


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
