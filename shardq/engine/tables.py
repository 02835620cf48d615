"""The tables of an engine, each defined once: of shards, nodes, topics, processes, schedules and dead tasks the columns
with their titles, formats and order. Pure: a terminal or a page draws them.

Called by ``shardq stats``, ``shards``, ``topics``, ``fleet``, ``every``, ``top`` and the dashboard.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

from shardq.core.calls.observe import Drawn
from shardq.core.fleet.lateness import Lateness
from shardq.core.fleet.member import Member, servers, unserved
from shardq.core.fleet.report import runs, together
from shardq.core.layout.topology import Route, TopicSettings
from shardq.core.model.checks import shown_instant
from shardq.core.model.ids import shown_topic
from shardq.core.model.printable import counted as counted
from shardq.engine.health import Health
from shardq.engine.snapshot import NodeSnapshot, Snapshot, behind
from shardq.engine.stats import ShardStats, Stats, TopicStats, largest
from shardq.engine.topic_keys import KeyStats, Why
from shardq.features.listing.query import Group, grouped
from shardq.features.schedules import Schedule

Row = TypeVar("Row")

MOST_TOPICS = 100
"""Topics that a command shows, unless it is told otherwise; then the sum of the others."""

WAITS_S = 60.0
"""A topic whose oldest ready task waits for longer is shown in red, unless it is held."""

# ---- formats


def number(count: int | None) -> str:
    """A count; None is one that could not be read.

    >>> number(None), number(0), number(1234)
    ('–', '0', '1,234')
    """
    return "–" if count is None else f"{count:,}"


def milliseconds(ms: int | None) -> str:
    """A lateness in whole ms, rounded down.

    >>> milliseconds(None), milliseconds(0), milliseconds(1234)
    ('-', '<1', '1,234')
    """
    if ms is None:
        return "-"
    return f"{ms:,}" if ms else "<1"


def age(seconds: float | None) -> str:
    """A length of time in the largest unit of which it has two or more.

    >>> age(None), age(0.25), age(119), age(120), age(90_000), age(200_000)
    ('-', '0.2 s', '119 s', '2 min', '25 h', '2 d')
    >>> age(-0.01), age(-0.25)
    ('0.0 s', '-0.2 s')
    """
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if abs(seconds) >= 2 * size:
            return f"{seconds / size:,.0f} {unit}"
    return f"{seconds:z.1f} s" if abs(seconds) < 10 else f"{seconds:.0f} s"


def per_second(rate: float | None) -> str:
    """
    >>> per_second(None), per_second(0.0), per_second(0.25), per_second(1234.5), per_second(-0.25)
    ('-', '0', '0.25', '1,234', '0')
    """
    if rate is None:
        return "-"
    return f"{rate:.2g}" if 0 < rate < 1 else f"{rate:z,.0f}"


def instant(at: Any) -> str:
    """A datetime to the second; all of ours are in UTC."""
    return f"{at:%Y-%m-%d %H:%M:%S}" if at else "-"


# ---- columns and tables


@dataclass(frozen=True)
class Column(Generic[Row]):
    title: str
    cell: Callable[[Row], str]
    rank: int = 0
    """Where not all columns have room, those of the highest rank are left out first; those of rank 0 always stay."""
    text: bool = False
    """Text stands on the left, and goes on in the next line where it is long: it may be an id that is copied.
    Everything else stands on the right, on one line.
    """
    optional: bool = False
    """True if the column is left out while each of its cells is empty."""
    value: Callable[[Row], Any] | None = None
    """The value by which it sorts; without one, its cells."""

    def key(self, row: Row) -> Any:
        return self.value(row) if self.value else self.cell(row)


@dataclass(frozen=True)
class View(Generic[Row]):
    """A table with its rows."""

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    red: Callable[[Row], bool] = lambda row: False
    """True for a row that needs attention."""
    empty: str = "none"
    """The sentence in place of no rows."""

    def shown(self, *, sort: int | None = None, turned: bool = False, filter: str = "") -> list[Row]:
        """The rows with this text, in the order of a column: numbers the greatest first, rows without a value last."""
        wanted = filter.lower()
        rows = [
            row for row in self.rows if not wanted or any(wanted in column.cell(row).lower() for column in self.columns)
        ]
        if sort is None:
            return rows[::-1] if turned else rows
        key = self.columns[sort % len(self.columns)].key
        known = [row for row in rows if key(row) is not None]
        numbers = bool(known) and not isinstance(key(known[0]), str)
        known.sort(key=key, reverse=numbers != turned)
        return known + [row for row in rows if key(row) is None]


def _of(title: str, value: Callable[[Row], Any], show: Callable[[Any], str], rank: int = 0) -> Column[Row]:
    """A column whose cell shows the value by which it sorts."""
    return Column(title, lambda row: show(value(row)), rank, value=value)


# ---- shards

ShardRow = ShardStats | Stats
"""A shard, or the totals of all."""

ShardColumn = Column[ShardRow]


def of_shard(show: Callable[[ShardStats], str]) -> Callable[[ShardRow], str]:
    """The cell of a column without a total."""
    return lambda row: show(row) if isinstance(row, ShardStats) else ""


def _count_of(field: str, rank: int) -> ShardColumn:
    def cell(row: ShardRow) -> str:
        count = getattr(row, field)
        return row.shown(count) if isinstance(row, Stats) else number(count)

    return Column(field, cell, rank, value=lambda row: getattr(row, field))


def _late(field: str, title: str, rank: int) -> ShardColumn:
    return _of(title, lambda row: getattr(row.lateness, field) if row.lateness else None, milliseconds, rank)


def _first_due(shard: ShardStats) -> str:
    """The due time of the first scheduled task, as a length of time from now."""
    if shard.head_age is None:
        return "-"
    text = age(abs(shard.head_age))
    return f"in {text}" if shard.head_age < 0 else f"{text} ago"


def _dispatched_per_s(row: ShardRow) -> float | None:
    if isinstance(row, ShardStats):
        return row.dispatched_per_s
    return row.rates.dispatched if row.rates else None


SHARD = ShardColumn(
    "shard",
    lambda row: str(row.shard) if isinstance(row, ShardStats) else "all",
    value=lambda row: -row.shard if isinstance(row, ShardStats) else 1,  # shard 0 is first
)
_HELD: ShardColumn = replace(_count_of("held", 3), cell=lambda row: number(row.held) if row.held else "", optional=True)
"""Stands there while a task waits for its key."""
COUNTS = (_count_of("scheduled", 1), _HELD, _count_of("ready", 2), _count_of("leased", 6))
DEAD = _count_of("dead", 5)
DISPATCHED = _count_of("dispatched", 3)
PER_SECOND: ShardColumn = _of("per s", _dispatched_per_s, per_second, 4)
BEHIND: ShardColumn = _of("behind", lambda row: behind(row.head_age), age, 1)
FIRST_DUE = ShardColumn("first due", of_shard(_first_due), 7)
LATENESS = (_late("p50_ms", "p50 ms", 7), _late("p99_ms", "p99 ms", 5))
POLLER = ShardColumn("poller", of_shard(lambda shard: shard.poller), 8)
NODE = ShardColumn("node", of_shard(lambda shard: shard.node), 9)


def is_failing(row: ShardRow) -> bool:
    """True for a shard that could not be read, or whose poller fails."""
    return isinstance(row, ShardStats) and (row.poller == "failing" or row.error is not None)


def dispatcher_column(fleet: Sequence[Member], shards: Sequence[ShardStats]) -> ShardColumn:
    """The process that says it serves the shard; ? where a report can't be read."""
    served_by = dict.fromkeys(unserved(fleet, (shard.shard for shard in shards)), "nobody")
    served_by |= {shard: process(member) for shard, member in servers(fleet).items()}
    return ShardColumn("dispatcher", of_shard(lambda shard: served_by.get(shard.shard, "?")), 8, text=True)


def shards(snapshot: Snapshot) -> View[ShardRow]:
    shown = snapshot.stats.shards
    left = unserved(snapshot.fleet, (shard.shard for shard in shown)) if snapshot.fleet else []
    return View(
        (SHARD, *COUNTS, DEAD, PER_SECOND, BEHIND, NODE, dispatcher_column(snapshot.fleet, shown)),
        shown,
        lambda row: is_failing(row) or (isinstance(row, ShardStats) and row.shard in left),
        "no shards",
    )


# ---- nodes


def nodes(snapshot: Snapshot) -> View[NodeSnapshot]:
    return View(
        (
            Column("node", lambda row: row.node, text=True),
            _of("shards", lambda row: row.shards, number, 4),
            _of("scheduled", lambda row: row.scheduled, number, 1),
            _of("ready", lambda row: row.ready, number, 2),
            _of("per s", lambda row: row.per_s, per_second, 2),
            _of("behind", lambda row: row.behind, age, 1),
            _of("replicas", lambda row: row.replicas, lambda count: "?" if count is None else f"{count}", 3),
            _of("lag", lambda row: row.unconfirmed, lambda size: "-" if size is None else f"{size:,} B", 5),
        ),
        snapshot.nodes,
        lambda row: row.unseen > 0,
        "no node was reached",
    )


# ---- topics

TopicRow = tuple[str, TopicStats]


def topics(health: Health, most: int | None = None) -> View[TopicRow]:
    """``most``: the largest ones, and the others together; None: all."""
    stats = health.stats
    rows = stats.topics if most is None else largest(stats.topics, most)
    sinks = {sink.topic: sink for sink in together(sink for member in health.fleet for sink in member.sinks)}

    def count(state: Drawn | Literal["retrying"], rank: int) -> Column[TopicRow]:
        """A count, with ~ and its error if it is an estimate."""

        def cell(row: TopicRow) -> str:
            error = row[1].estimated.get(state)
            text = stats.shown(getattr(row[1], state), mark="" if error is None else "~")
            return text if error is None else f"{text} ±{error:,}"

        return Column(state, cell, rank, value=lambda row: getattr(row[1], state))

    def is_down(topic: str) -> bool:
        return topic in sinks and sinks[topic].circuit != "closed"

    def settings(row: TopicRow) -> str:
        return (topic_settings(row[1]) or "-") + (f", circuit {sinks[row[0]].circuit}" if is_down(row[0]) else "")

    taken: Column[TopicRow] = _of("taken/s", lambda row: row[1].taken_per_s, per_second, 4)
    return View(
        (
            Column("topic", lambda row: shown_topic(row[0]), text=True, value=lambda row: row[0]),
            count("scheduled", 1),
            *([count("held", 3)] if stats.held else []),
            *([count("retrying", 4)] if stats.retrying else []),
            _of("ready", lambda row: row[1].ready, stats.shown),
            _of("oldest", lambda row: row[1].oldest_ready, age, 2),
            count("leased", 5),
            count("dead", 3),
            _of("dispatched", lambda row: row[1].dispatched, stats.shown, 6),
            *([taken] if stats.rates is not None else []),
            Column("set", settings, text=True),
        ),
        list(rows.items()),
        lambda row: is_down(row[0]) or bool((row[1].oldest_ready or 0) > WAITS_S and not row[1].keeps_back),
        "no topic has had a task",
    )


def keys(found: Sequence[KeyStats]) -> View[KeyStats]:
    return View(
        (
            Column("key", lambda row: row.key, text=True),
            _of("held", lambda row: row.held, number),
            _of("oldest", lambda row: row.oldest, age, 2),
            _of("ready", lambda row: row.ready, number, 3),
            _of("leased", lambda row: row.leased, number, 3),
            _of("scheduled", lambda row: row.scheduled, number, 4),
            Column("waits for", waits_for, text=True),
            Column("next turn", next_turn, 1, text=True),
            *([Column("last failure", last_failure, text=True)] if any(each.failures for each in found) else []),
        ),
        found,
        empty="no task of the topic has a key",
    )


def waits_for(key: KeyStats) -> str:
    """The reason why the held tasks of a key wait."""
    parts = [] if key.why is None else [_WAITS_FOR[key.why]]
    parts += [f"{key.over:,} over its limit"] if key.over else []
    parts += [f"until {instant(key.until)} UTC"] if key.until is not None else []
    return ", ".join(parts) or "-"


def next_turn(key: KeyStats) -> str:
    """When a key gives out its next task."""
    return "-" if key.next_turn is None else f"{instant(key.next_turn)} UTC"


ANSWER = 80
"""Characters of a failure that a table shows."""


def last_failure(key: KeyStats) -> str:
    """Why the task failed whose retry a key waits for, and how often it has failed."""
    if not key.failures:
        return "-"
    lines = (key.reason or "").strip().splitlines()
    return f"{lines[-1][:ANSWER] if lines else 'no reason'} ({counted(key.failures, 'failure')})"


_WAITS_FOR: Mapping[Why, str] = {
    "per_key": "its ready and leased tasks",
    "per_key_rate": "its rate",
    "backoff": "a retry",
    "hold": "the end of a hold",
    "resize": "its move to another shard",
}


def topic_settings(topic: TopicStats | TopicSettings) -> str:
    """The pause, the limits and the route of a topic; empty without any."""
    parts = ["paused"] if topic.paused else []
    if until := topic.paused_until:
        parts = [f"paused until {instant(until if isinstance(until, dt.datetime) else shown_instant(until))}"]
    if topic.limit is not None:
        rate, at_once = topic.limit.rate, topic.limit.concurrency
        limits = [f"{rate:,g} a second"] if rate is not None else []
        limits += [f"{at_once:,} at once"] if at_once is not None else []
        limits += [f"{topic.limit.per_key:,} of each key at once"] if topic.limit.per_key is not None else []
        limits += (
            [f"{topic.limit.per_key_rate:,g} a second of each key"] if topic.limit.per_key_rate is not None else []
        )
        parts.append("at most " + ", ".join(limits))
    if topic.route is not None:
        parts.append(f"to {route(topic.route)}")
    if isinstance(topic, TopicSettings) and topic.done_age is not None:
        parts.append(f"ends are kept for {age(topic.done_age)}" if topic.done_age else "keeps no ends")
    return "; ".join(parts)


def route(route: Route) -> str:
    """Where a topic goes, and how."""
    if not route.is_here or route.way == "stream":
        kept = f", about {route.maxlen:,} entries" if route.maxlen is not None else ""
        return route.named + (" by LPUSH" if route.side == "left" else "") + kept
    return f"{route.named} by {'LPUSH' if route.side == 'left' else 'RPUSH'}"


# ---- processes


def process(member: Member) -> str:
    return f"{member.host}:{member.pid}" if member.host else member.name


def lateness_of(member: Member) -> Lateness:
    """How late a dispatcher moved tasks, or how long they waited in a worker: all topics together."""
    return Lateness.total((*member.dispatch_lateness.values(), *member.pickup_lateness.values()))


def _serves(member: Member) -> str:
    if member.kind == "worker":
        return ", ".join(map(shown_topic, member.topics)) or "?"
    return ranges(member.shards) or "no shards"


def ranges(numbers: Iterable[int]) -> str:
    """
    >>> ranges([1, 2, 3, 7, 9, 10])
    '1-3, 7, 9-10'
    """
    flat = runs(numbers)
    return ", ".join(
        f"{first}" if first == last else f"{first}-{last}" for first, last in zip(flat[0::2], flat[1::2], strict=True)
    )


def _sinks(member: Member) -> str:
    return ", ".join(
        f"{shown_topic(sink.topic)} {sink.sent:,}" + (f" ({sink.circuit})" if sink.circuit != "closed" else "")
        for sink in member.sinks
    )


def _longest(member: Member) -> str:
    return f"{member.longest[0].id} for {age(member.longest[0].seconds)}" if member.longest else ""


def _running(member: Member) -> str:
    return f"{member.running:,} of {member.concurrency:,}" if member.kind == "worker" else ""


def _batch(member: Member) -> float | None:
    """The tasks that its handlers of batches got in a call, on average. None: there was no such call."""
    return member.batched / member.batches if member.batches > 0 else None


def _batch_shown(member: Member) -> str:
    batch = _batch(member)
    return "" if batch is None else f"{batch:,.{0 if batch >= 100 else 1}f}"


def _up(member: Member) -> float | None:
    return max(0.0, time.time() - member.since) if member.since else None


def fleet(members: Sequence[Member]) -> View[Member]:
    return View(
        (
            Column("process", process, text=True),
            Column("kind", lambda member: member.kind, 1),
            Column("serves", _serves, 2, text=True),
            _of("up", _up, age, 5),
            _of("seen", lambda member: member.seen_s, age, 6),
            Column("running", _running, 7, optional=True, value=lambda member: member.running),
            Column("longest", _longest, 5, text=True, optional=True),
            _of("done", lambda member: member.dispatched + member.handled, number, 3),
            _of("failed", lambda member: member.failed, number, 4),
            Column("batch", _batch_shown, 5, optional=True, value=_batch),
            _of("p99 ms", lambda member: lateness_of(member).p99_ms, milliseconds, 4),
            Column("sinks", _sinks, 3, text=True, optional=True),
            Column("version", lambda member: member.version or "?", 9, text=True),
            Column("format", lambda member: str(member.format), 9),
            Column("last error", lambda member: member.last_error, 8, text=True, optional=True),
        ),
        members,
        lambda member: bool(member.stuck or member.problems),
        "no dispatcher and no worker runs: start them with `shardq run` and `shardq work`",
    )


# ---- dead tasks, by their reasons


def dead(snapshot: Snapshot) -> View[Group]:
    unread = "not read: this view needs every shard, and some can't be read"
    return View(
        (
            _of("tasks", lambda row: row.count, number),
            _of("last (UTC)", lambda row: row.last, lambda at: f"{at:%m-%d %H:%M:%S}" if at else "", 1),
            Column("topic", lambda row: ", ".join(map(shown_topic, sorted(row.topics))), 2, text=True),
            Column("one of them", lambda row: row.example, 3, text=True),
            Column("reason", lambda row: row.cause, text=True),
        ),
        grouped(snapshot.dead),
        empty=unread if snapshot.stats.missing else "no dead tasks",
    )


# ---- schedules


def recurrence(schedule: Schedule) -> str:
    if schedule.cron is None and schedule.interval is None:
        return "can't be read"
    often = f"every {schedule.interval:g} s" if schedule.cron is None else f"{schedule.cron} ({schedule.tz})"
    return f"{often}, up to {schedule.jitter:g} s later" if schedule.jitter else often


def schedules(found: Sequence[Schedule]) -> View[Schedule]:
    return View(
        (
            Column("name", lambda each: each.name, text=True),
            Column("recurs", recurrence, text=True),
            Column("topic", lambda each: shown_topic(each.topic), 1, text=True),
            Column("last (UTC)", lambda each: instant(each.last), 3, text=True),
            Column("next (UTC)", lambda each: "paused" if each.paused else instant(each.next), text=True),
            Column("missed", lambda each: each.catch_up, 2, text=True),
        ),
        found,
        lambda each: each.problem is not None,
    )
