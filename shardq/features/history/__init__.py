"""The past of an engine, as ``engine.history()`` returns it: the last minutes, hours or days, in the same buckets in
which a forecast goes on; and its stored form.

A dispatcher writes a row each minute (``recorder``) into one string of ``LENGTH`` bytes in the control slot. It begins
with the state, the counters as they were when the last row was written; a row says what became of them since. So rows
go on being right when another dispatcher writes the next. Then come a row for each minute of a day, and one for each
hour of thirty days. The place of a row follows from its time, and a row says which time it is of: one of an earlier
round counts as none. ``lua/README.md`` has the fields for other clients.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import chain, pairwise
from typing import Any, NamedTuple

import msgspec

from shardq.core.calls import control
from shardq.core.fleet.lateness import MAX_LATE_S, Lateness
from shardq.core.fleet.member import Member
from shardq.core.fleet.report import dense, sparse
from shardq.core.layout.words import UNDECODABLE
from shardq.core.model.checks import shown_instant
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.features.history import requests
from shardq.features.listing.forecast import STEPS, Horizon, check_horizon


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
    backlog_minutes: int = 0
    """The recorded minutes that ended with a backlog: with more ready tasks than workers handle in a second. Without
    one, ``handled`` says what came, and not what workers can handle. Of a month, all minutes of such hours.
    """


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


def backlog_minutes(rows: Iterable[Row]) -> int:
    """The minutes of the rows that ended with a backlog.

    >>> backlog_minutes([Row(1, 1, ready=3, handled=60), Row(2, 1, ready=1, handled=60), Row(3, 1, ready=9)])
    1
    """
    return sum(row.minutes for row in rows if row.handled and row.ready > row.handled / row.minutes / 60)


def read_history(cache: TopologyCache, horizon: Horizon) -> Operation[History]:
    check_horizon(horizon)
    keys = cache.control
    now_ms = int((yield control.clock_ms(keys).briefly()))
    step, count = STEPS[horizon]
    by_hours = horizon == "month"
    offset, length = (hour_at(0), HOURS) if by_hours else (minute_at(0), MINUTES)
    rows = rows_of((yield requests.read(keys, offset, length * ROW_BYTES).briefly()))
    row_ms = HOUR_MS if by_hours else MINUTE_MS
    step_ms = int(step.total_seconds() * 1000)
    first = now_ms // step_ms - count + 1
    buckets: dict[int, list[Row]] = {}
    for number in sorted(rows):
        buckets.setdefault(number * row_ms // step_ms, []).append(rows[number])
    return History(
        now=shown_instant(now_ms),
        step=step,
        points=[_point(shown_instant(at * step_ms), buckets.get(at, [])) for at in range(first, first + count)],
        backlog_minutes=backlog_minutes(chain.from_iterable(buckets.get(at, ()) for at in range(first, first + count))),
    )


def _point(start: dt.datetime, rows: list[Row]) -> HistoryPoint:
    if not rows:
        return HistoryPoint(start=start, minutes=0)
    row = reduce(merged, rows)
    fields: dict[str, Any] = row._asdict() | {"late_p99_ms": row.late_p99_ms if row.late_p99_ms >= 0 else None}
    del fields["number"]
    return HistoryPoint(start=start, **fields)


# ---- the stored form

STATE_BYTES = 65_536
"""The room for the state, its own length of two words included."""

MINUTES, HOURS = 1440, 720
"""The rows that are kept."""

_HEAD = struct.Struct(">II")
"""The minute of the last row, and the length of what follows."""

_ROW = struct.Struct(">IHHHxxQQQQIIi")
ROW_BYTES = _ROW.size

LENGTH = STATE_BYTES + (MINUTES + HOURS) * ROW_BYTES

MINUTE_MS, HOUR_MS = 60_000, 3_600_000


class Row(NamedTuple):
    """A minute, or an hour, of the past. Several are ``merged``."""

    number: int
    """The minutes, or the hours, since 1970."""
    minutes: int = 0
    """The minutes that it tells of: more than one after a time in which none was written."""
    shards: int = 0
    unseen: int = 0
    """Shards that could not be read: they are in no count."""
    scheduled: int = 0
    """At its end, like ``ready``."""
    ready: int = 0
    dispatched: int = 0
    handled: int = 0
    failed: int = 0
    died: int = 0
    late_p99_ms: int = -1
    """Below 0: nothing was dispatched, or it is not known how late."""

    def packed(self) -> bytes:
        big, small = (1 << 64) - 1, (1 << 32) - 1
        return _ROW.pack(
            self.number,
            *(min(each, 0xFFFF) for each in (self.minutes, self.shards, self.unseen)),
            *(min(each, big) for each in (self.scheduled, self.ready, self.dispatched, self.handled)),
            *(min(each, small) for each in (self.failed, self.died)),
            min(self.late_p99_ms, (1 << 31) - 1),
        )


def merged(earlier: Row, later: Row) -> Row:
    """Two rows as one of the earlier's time."""
    return later._replace(
        number=earlier.number,
        minutes=earlier.minutes + later.minutes,
        unseen=max(earlier.unseen, later.unseen),
        dispatched=earlier.dispatched + later.dispatched,
        handled=earlier.handled + later.handled,
        failed=earlier.failed + later.failed,
        died=earlier.died + later.died,
        late_p99_ms=max(earlier.late_p99_ms, later.late_p99_ms),
    )


def minute_at(minute: int) -> int:
    """The offset of the row of a minute."""
    return STATE_BYTES + minute % MINUTES * ROW_BYTES


def hour_at(hour: int) -> int:
    """The offset of the row of an hour."""
    return STATE_BYTES + (MINUTES + hour % HOURS) * ROW_BYTES


def rows_of(stored: bytes) -> dict[int, Row]:
    """Number → row, of whole rows one after the other."""
    rows = (Row(*fields) for fields in _ROW.iter_unpack(stored[: len(stored) // ROW_BYTES * ROW_BYTES]))
    return {row.number: row for row in rows if row.minutes}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The counters, as the last row left them."""

    minute: int
    shards: dict[int, tuple[int, int]]
    """Shard → the tasks dispatched, and those that died."""
    workers: dict[str, tuple[int, int]] = {}
    """Worker → the tasks handled, and the attempts that failed."""
    dispatchers: dict[str, list[int]] = {}
    """Dispatcher → its lateness, as ``fleet.report`` writes histograms."""

    def packed(self) -> bytes:
        """The stored form. Where it is too long, processes are left out, and count when they are in it again."""
        body, state = msgspec.msgpack.encode(self), self
        while len(body) > STATE_BYTES - _HEAD.size:
            state = msgspec.structs.replace(state, workers=_half(state.workers), dispatchers=_half(state.dispatchers))
            body = msgspec.msgpack.encode(state)
        return _HEAD.pack(self.minute, len(body)) + body

    @classmethod
    def of(cls, stored: bytes) -> State | None:
        """None: there is none, or it was written by another version, and what came since can't be told."""
        if len(stored) < _HEAD.size:
            return None
        minute, length = _HEAD.unpack_from(stored)
        try:
            state = msgspec.msgpack.decode(stored[_HEAD.size : _HEAD.size + length], type=cls)
        except UNDECODABLE:
            return None
        return state if state.minute == minute else None


def _half(processes: Mapping[str, object]) -> dict[str, object]:
    return {name: processes[name] for name in list(processes)[: len(processes) // 2]}


class Counted(NamedTuple):
    """A shard as it was counted."""

    scheduled: int
    ready: int
    dispatched: int
    died: int


def noted(
    before: State | None, minute: int, counts: Mapping[int, Counted | None], fleet: Sequence[Member]
) -> tuple[State, Row]:
    """The state after that minute, and the minute's row. ``counts``: shard → its counts; None: it could not be read.

    A shard that is new counts from zero, and so does a process that started since. Without a state before it, all
    counts begin now.
    """
    seen = {shard: counted for shard, counted in counts.items() if counted is not None}
    was = before.shards if before else {}
    shards = {shard: was[shard] for shard in counts if shard in was}
    shards |= {shard: (counted.dispatched, counted.died) for shard, counted in seen.items()}
    workers = {each.name: (each.handled, each.failed) for each in fleet if each.kind == "worker" and each.since}
    dispatchers = {
        each.name: Lateness.total(each.dispatch_lateness.values()) for each in fleet if each.kind == "dispatcher"
    }
    state = State(
        minute=minute,
        shards=shards,
        workers=workers,
        dispatchers={name: sparse(lateness) for name, lateness in dispatchers.items()},
    )
    if before is None:
        return state, Row(minute)
    began_s = (before.minute + 1) * MINUTE_MS / 1000
    new = {each.name for each in fleet if each.since >= began_s}
    done = [
        _grown(before.workers.get(name, (0, 0)), now)
        for name, now in workers.items()
        if name in before.workers or name in new
    ]
    late = Lateness.total(
        lateness.since(dense(before.dispatchers.get(name, [])))
        for name, lateness in dispatchers.items()
        if name in before.dispatchers or name in new
    )
    came = [_grown(was.get(shard, (0, 0)), shards[shard]) for shard in seen]
    return state, Row(
        minute,
        max(1, minute - before.minute),
        len(counts),
        len(counts) - len(seen),
        sum(each.scheduled for each in seen.values()),
        sum(each.ready for each in seen.values()),
        sum(dispatched for dispatched, _ in came),
        sum(handled for handled, _ in done),
        sum(failed for _, failed in done),
        sum(died for _, died in came),
        -1 if (p99 := late.p99_ms) is None else p99,
    )


def _grown(was: tuple[int, int], now: tuple[int, int]) -> tuple[int, int]:
    """A failover, or a purge, may have taken counters back."""
    return max(0, now[0] - was[0]), max(0, now[1] - was[1])
