"""The table of shards: once for ``stats`` and ``shards``, over and over for ``stats --watch``, ``run``, ``demo`` and
``expand --wait``.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from shardq.cli.output import age, complain, milliseconds, per_second, say, shown
from shardq.cli.table import Column, Table
from shardq.engine import ShardStats, Stats

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

AROUND = 5
"""Lines of a terminal that the table needs beside its shards: title, rules, totals, and the cursor's."""

Row = ShardStats | Stats
"""A shard, or the totals of all."""

ShardColumn = Column[Row]


def has_counts(row: Row) -> bool:
    """False for a shard that could not be seen."""
    return not (isinstance(row, ShardStats) and row.error)


def of_shard(show: Callable[[ShardStats], str]) -> Callable[[Row], str]:
    """The cell of a column without a total."""
    return lambda row: show(row) if isinstance(row, ShardStats) else ""


def _count(field: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        count = getattr(row, field)
        return row.shown(count) if isinstance(row, Stats) else "–" if count is None else f"{count:,}"

    return cell


def _lateness(field: str) -> Callable[[Row], str]:
    return lambda row: milliseconds(getattr(row.lateness, field) if row.lateness else None)


def _first_due(shard: ShardStats) -> str:
    """The due time of the first scheduled task, in the largest unit of which it is two or more away."""
    if shard.head_age is None:
        return "-"
    text = age(abs(shard.head_age))
    return f"in {text}" if shard.head_age < 0 else f"{text} ago"


def _rate(row: Row) -> float | None:
    """Tasks dispatched in a second."""
    if isinstance(row, ShardStats):
        return row.dispatched_per_s
    return row.rates.dispatched if row.rates else None


SHARD = ShardColumn("shard", lambda row: str(row.shard) if isinstance(row, ShardStats) else "all")
COUNTS = (
    ShardColumn("scheduled", _count("scheduled"), rank=1),
    ShardColumn("ready", _count("ready"), rank=2),
    ShardColumn("leased", _count("leased"), rank=6),
)
DEAD = ShardColumn("dead", _count("dead"), rank=5)
DISPATCHED = ShardColumn("dispatched", _count("dispatched"), rank=3)
LATENESS = (ShardColumn("p50 ms", _lateness("p50_ms"), rank=7), ShardColumn("p99 ms", _lateness("p99_ms"), rank=5))
PER_SECOND = ShardColumn("per s", lambda row: per_second(_rate(row)), rank=4)
FIRST_DUE = ShardColumn("first due", of_shard(_first_due), rank=7)
POLLER = ShardColumn("poller", of_shard(lambda shard: shard.poller), rank=8)
NODE = ShardColumn("node", of_shard(lambda shard: shard.node), rank=9)


def _table(columns: tuple[ShardColumn, ...]) -> Table[Row]:
    return Table(SHARD, *columns, red=_is_failing)


def _is_failing(row: Row) -> bool:
    return isinstance(row, ShardStats) and (row.poller == "failing" or row.error is not None)


def print_shards(stats: Stats, *columns: ShardColumn) -> None:
    """The table once, with every shard."""
    _table(columns).print(stats.shards, totals=[column.cell(stats) for column in (SHARD, *columns)])


class ShardView:
    """Shows stats over and over: on a terminal as a table that is redrawn in place, elsewhere as lines of totals.

    As a context manager it leaves the last table. ``plain_s``: the least time between two lines.
    """

    def __init__(self, *columns: ShardColumn, plain_s: float = 0.0) -> None:
        at = columns.index(DISPATCHED) + 1 if DISPATCHED in columns else 0
        self._columns = (*columns[:at], PER_SECOND, *columns[at:]) if at else columns
        self._table = _table(self._columns)
        self._plain_s = plain_s
        self._said_at = -math.inf
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stdout.isatty():
            from rich.live import Live

            self._live = Live(auto_refresh=False, vertical_overflow="crop")
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, stats: Stats | None, said: str) -> None:
        """The newest stats, with a sentence on them; or None, with the reason for it."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(self._drawn(self._live, stats, said), refresh=True)
        elif stats is None:
            complain(said)
        elif now - self._said_at >= self._plain_s:
            self._said_at = now
            totals = ((column.title, column.cell(stats)) for column in self._columns)
            say("  ".join((said, *(f"{title} {total}" for title, total in totals if total))))
            sys.stdout.flush()

    def _drawn(self, live: Live, stats: Stats | None, said: str) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        below = Text(shown(said), overflow="fold")
        if stats is None:
            return below
        width, height = live.console.size
        room = max(1, height - AROUND - len(below.wrap(live.console, width)))
        shards = stats.shards if len(stats.shards) <= room else stats.shards[: room - 1]
        totals = [column.cell(stats) for column in (SHARD, *self._columns)]
        table = self._table.drawn(shards, totals=totals, width=width, more=len(stats.shards) - len(shards))
        return Group(table, below)
