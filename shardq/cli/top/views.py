"""The views of the screen: the tables of ``engine.tables``, and what will fall due, with bars. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from shardq.engine import tables
from shardq.engine.snapshot import Snapshot
from shardq.engine.tables import Column, View

BAR = 40
"""The width of the longest bar of the future."""


@dataclass(frozen=True, slots=True)
class Bucket:
    start: str
    count: int
    most: int


def _future(snapshot: Snapshot) -> View[Bucket]:
    forecast = snapshot.future
    rows = []
    if forecast is not None:
        counts = [("overdue", forecast.overdue)]
        counts += [(f"{start.astimezone():%H:%M}", count) for start, count in forecast.buckets]
        most = max(count for _, count in counts)
        rows = [Bucket(start, count, most) for start, count in counts]
    return View(
        (
            Column("due", lambda row: row.start),
            Column("tasks", lambda row: f"{row.count:,}", value=lambda row: row.count),
            Column("", lambda row: "█" * round(BAR * row.count / row.most) if row.most else "", text=True),
        ),
        rows,
        lambda row: row.start == "overdue" and row.count > 0,
        "not counted: this view needs every shard, and some can't be read"
        if snapshot.stats.missing
        else "not counted yet",
    )


VIEWS: dict[str, Callable[[Snapshot], View[Any]]] = {
    "shards": tables.shards,
    "nodes": tables.nodes,
    "topics": lambda snapshot: tables.topics(snapshot.health),
    "fleet": lambda snapshot: tables.fleet(snapshot.fleet),
    "dead": tables.dead,
    "future": _future,
}
