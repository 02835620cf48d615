"""The tables of the screen: for each view its columns, how they sort, and its rows of a look. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardq.cli.output import age, milliseconds, per_second
from shardq.cli.table import Column
from shardq.engine import ShardStats, TopicStats
from shardq.engine.snapshot import NodeSnapshot, Snapshot, behind
from shardq.fleet import Lateness, Member
from shardq.fleet.serving import servers, unserved
from shardq.listing.reasons import Group, grouped
from shardq.model.ids import shown_topic

Row = TypeVar("Row")

UNREAD = "this view needs every shard, and some can't be read"

BAR = 40
"""The width of the longest bar of the future."""


@dataclass(frozen=True)
class View(Generic[Row]):
    columns: Sequence[Column[Row]]
    keys: Sequence[Callable[[Row], Any]]
    """The value by which each column sorts. Numbers sort the greatest first."""
    rows: Sequence[Row]
    red: Callable[[Row], bool]
    empty: str
    """The sentence in place of no rows."""

    def shown(self, *, sort: int | None, turned: bool, filter: str) -> list[Row]:
        """The rows with this text, in the order of a column."""
        wanted = filter.lower()
        rows = [
            row for row in self.rows if not wanted or any(wanted in column.cell(row).lower() for column in self.columns)
        ]
        if sort is not None:
            key = self.keys[sort % len(self.keys)]
            # those without a value come last, either way
            known = [row for row in rows if key(row) is not None]
            numbers = bool(known) and not isinstance(key(known[0]), str)
            known.sort(key=key, reverse=numbers != turned)
            return known + [row for row in rows if key(row) is None]
        return rows[::-1] if turned else rows


def _known(count: int | None) -> str:
    return "–" if count is None else f"{count:,}"


def view(name: str, look: Snapshot) -> View[Any]:
    return _VIEWS[name](look)


# ---- shards


def _shards(look: Snapshot) -> View[ShardStats]:
    nobodys = unserved(look.fleet, (shard.shard for shard in look.stats.shards))
    served_by = dict.fromkeys(nobodys, "nobody")
    served_by |= {shard: f"{each.host}:{each.pid}" for shard, each in servers(look.fleet).items()}
    return View(
        (
            Column("shard", lambda shard: str(shard.shard)),
            Column("scheduled", lambda shard: _known(shard.scheduled), rank=1),
            Column("ready", lambda shard: _known(shard.ready), rank=2),
            Column("leased", lambda shard: _known(shard.leased), rank=5),
            Column("dead", lambda shard: _known(shard.dead), rank=6),
            Column("per s", lambda shard: per_second(shard.dispatched_per_s), rank=2),
            Column("behind", lambda shard: age(behind(shard.head_age)), rank=1),
            Column("node", lambda shard: shard.node, rank=3),
            Column("served by", lambda shard: served_by.get(shard.shard, "?"), rank=4, text=True),
        ),
        (
            lambda shard: -shard.shard,
            lambda shard: shard.scheduled,
            lambda shard: shard.ready,
            lambda shard: shard.leased,
            lambda shard: shard.dead,
            lambda shard: shard.dispatched_per_s,
            lambda shard: behind(shard.head_age),
            lambda shard: shard.node,
            lambda shard: served_by.get(shard.shard, ""),
        ),
        look.stats.shards,
        lambda shard: shard.error is not None or (bool(look.fleet) and shard.shard in nobodys),
        "no shards",
    )


# ---- nodes


def _nodes(look: Snapshot) -> View[NodeSnapshot]:
    return View(
        (
            Column("node", lambda row: row.node, text=True),
            Column("shards", lambda row: str(row.shards), rank=4),
            Column("scheduled", lambda row: _known(row.scheduled), rank=1),
            Column("ready", lambda row: _known(row.ready), rank=2),
            Column("per s", lambda row: per_second(row.per_s), rank=2),
            Column("behind", lambda row: age(row.behind), rank=1),
            Column("replicas", lambda row: "?" if row.replicas is None else str(row.replicas), rank=3),
            Column("lag", lambda row: "-" if row.unconfirmed is None else f"{row.unconfirmed:,} B", rank=5),
        ),
        (
            lambda row: row.node,
            lambda row: row.shards,
            lambda row: row.scheduled,
            lambda row: row.ready,
            lambda row: row.per_s,
            lambda row: row.behind,
            lambda row: row.replicas,
            lambda row: row.unconfirmed,
        ),
        look.nodes,
        lambda row: row.unseen > 0,
        "no node was reached",
    )


# ---- topics


def _topics(look: Snapshot) -> View[tuple[str, TopicStats]]:
    def estimate(count: int, state: str, topic: TopicStats) -> str:
        return look.stats.shown(count, mark="~" if state in topic.estimated else "")

    sinks = look.sinks

    def is_down(topic: str) -> bool:
        return topic in sinks and sinks[topic].circuit != "closed"

    def settings(row: tuple[str, TopicStats]) -> str:
        return _settings(row[1]) + (f", circuit {sinks[row[0]].circuit}" if is_down(row[0]) else "")

    return View(
        (
            Column("topic", lambda row: shown_topic(row[0]), text=True),
            Column("scheduled", lambda row: estimate(row[1].scheduled, "scheduled", row[1]), rank=3),
            Column("ready", lambda row: look.stats.shown(row[1].ready), rank=1),
            Column("leased", lambda row: estimate(row[1].leased, "leased", row[1]), rank=4),
            Column("dead", lambda row: estimate(row[1].dead, "dead", row[1]), rank=5),
            Column("taken/s", lambda row: per_second(row[1].taken_per_s), rank=2),
            Column("oldest", lambda row: age(row[1].oldest_ready), rank=1),
            Column("set", settings, rank=6, text=True),
        ),
        (
            lambda row: row[0],
            lambda row: row[1].scheduled,
            lambda row: row[1].ready,
            lambda row: row[1].leased,
            lambda row: row[1].dead,
            lambda row: row[1].taken_per_s,
            lambda row: row[1].oldest_ready,
            settings,
        ),
        sorted(look.stats.topics.items()),
        lambda row: is_down(row[0]) or bool(row[1].oldest_ready and row[1].oldest_ready > 60 and not row[1].held),
        "no topic has had a task",
    )


def _settings(topic: TopicStats) -> str:
    parts = ["paused"] if topic.paused else []
    if topic.limit is not None:
        rate, at_once = topic.limit.rate, topic.limit.concurrency
        parts += [f"{rate:,g}/s"] if rate is not None else []
        parts += [f"{at_once:,} at once"] if at_once is not None else []
    if topic.route is not None:
        parts.append(f"to {topic.route.shown}")
    return ", ".join(parts)


# ---- fleet


def _fleet(look: Snapshot) -> View[Member]:
    def late(member: Member) -> Lateness:
        return Lateness.total((*member.dispatch_lateness.values(), *member.pickup_lateness.values()))

    def serves(member: Member) -> str:
        if member.kind == "dispatcher":
            return f"{len(member.shards)} shards"
        return ", ".join(shown_topic(topic) for topic in member.topics)

    return View(
        (
            Column("process", lambda member: f"{member.host}:{member.pid}", text=True),
            Column("kind", lambda member: member.kind, rank=1),
            Column("up", lambda member: age(max(0.0, time.time() - member.since)), rank=5),
            Column("seen", lambda member: age(member.seen_s), rank=6),
            Column("running", lambda member: f"{member.running:,}" if member.kind == "worker" else "", rank=4),
            Column("handled", lambda member: f"{member.handled:,}" if member.kind == "worker" else "", rank=3),
            Column("failed", lambda member: f"{member.failed:,}" if member.kind == "worker" else "", rank=2),
            Column("p99 ms", lambda member: milliseconds(late(member).p99_ms), rank=2),
            Column("serves", serves, rank=2, text=True),
        ),
        (
            lambda member: f"{member.host}:{member.pid}",
            lambda member: member.kind,
            lambda member: time.time() - member.since,
            lambda member: member.seen_s,
            lambda member: member.running,
            lambda member: member.handled,
            lambda member: member.failed,
            lambda member: late(member).p99_ms,
            serves,
        ),
        look.fleet,
        lambda member: bool(member.last_error),
        "no dispatcher and no worker runs: start them with `shardq run` and `shardq work`",
    )


# ---- dead


def _dead(look: Snapshot) -> View[Group]:
    return View(
        (
            Column("tasks", lambda row: f"{row.count:,}"),
            Column("last (UTC)", lambda row: f"{row.last:%m-%d %H:%M:%S}" if row.last else "", rank=1),
            Column("topic", lambda row: ", ".join(shown_topic(each) for each in sorted(row.topics)), rank=2, text=True),
            Column("one of them", lambda row: row.example, rank=3, text=True),
            Column("reason", lambda row: row.cause, text=True),
        ),
        (
            lambda row: row.count,
            lambda row: row.last.timestamp() if row.last else 0,
            lambda row: min(row.topics),
            lambda row: row.example,
            lambda row: row.cause,
        ),
        grouped(look.dead),
        lambda row: False,
        f"not read: {UNREAD}" if look.stats.missing else "no dead tasks",
    )


# ---- future


@dataclass(frozen=True, slots=True)
class Bucket:
    start: str
    count: int
    most: int


def _future(look: Snapshot) -> View[Bucket]:
    forecast = look.future
    rows = []
    if forecast is not None:
        counts = [("overdue", forecast.overdue)]
        counts += [(f"{start.astimezone():%H:%M}", count) for start, count in forecast.buckets]
        most = max(count for _, count in counts)
        rows = [Bucket(start, count, most) for start, count in counts]
    return View(
        (
            Column("due", lambda row: row.start),
            Column("tasks", lambda row: f"{row.count:,}"),
            Column("", lambda row: "█" * round(BAR * row.count / row.most) if row.most else "", text=True),
        ),
        (lambda row: row.start, lambda row: row.count, lambda row: row.count),
        rows,
        lambda row: row.start == "overdue" and row.count > 0,
        f"not counted: {UNREAD}" if look.stats.missing else "not counted yet",
    )


_VIEWS: dict[str, Callable[[Snapshot], View[Any]]] = {
    "shards": _shards,
    "nodes": _nodes,
    "topics": _topics,
    "fleet": _fleet,
    "dead": _dead,
    "future": _future,
}
