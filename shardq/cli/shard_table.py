"""The table of shards that ``demo``, ``run``, ``stats`` and ``shards`` show, and its one-line form; and plain tables of
rows for the others. The only user of rich's tables.

Rates come from the looks before: a board is made once and given every ``Stats`` in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardq.cli.output import milliseconds
from shardq.engine import ShardStats, Stats

RATE_S = 1.0
"""Rates are over the last second, or the time between two looks if that is longer."""

AROUND = 5
"""Lines of a terminal that are not for shards: header, rules, totals, and the cursor's. What is said below comes on top
of that.
"""

BETWEEN = 3
"""Blanks between two columns."""

TEXT = 24
"""The least width of a last column of text; longer text goes on in the next line."""

UNBOUND = 1000
"""Columns where there is no terminal: nothing is cut that can be read at all."""

Row = ShardStats | Stats


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cell: Callable[[Row], str]
    rank: int
    """Where not all columns have room, those of the highest rank are left out first. Never is a cell cut."""


def seen(row: Row) -> bool:
    """True if its counts say something."""
    return not (isinstance(row, ShardStats) and row.error)


def _number(field: str) -> Callable[[Row], str]:
    return lambda row: f"{getattr(row, field):,}" if seen(row) else "?"


def _lateness(field: str) -> Callable[[Row], str]:
    return lambda row: milliseconds(getattr(row.lateness, field) if row.lateness else None)


def of_shard(show: Callable[[ShardStats], str]) -> Callable[[Row], str]:
    """A cell of which there is no total."""
    return lambda row: show(row) if isinstance(row, ShardStats) else ""


def _head(shard: ShardStats) -> str:
    """When the first scheduled task is due, in the largest unit that leaves two of it or more."""
    if shard.head_age is None:
        return "-"
    distance = abs(shard.head_age)
    text = f"{distance:.1f} s"
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if distance >= 2 * size:
            text = f"{distance / size:.0f} {unit}"
            break
    return f"in {text}" if shard.head_age < 0 else f"{text} ago"


PENDING = Column("pending", _number("scheduled"), rank=1)
READY = Column("ready", _number("ready"), rank=2)
LEASED = Column("leased", _number("leased"), rank=6)
COUNTS = (PENDING, READY, LEASED)
DISPATCHED = Column("dispatched", _number("dispatched"), rank=3)
LATENESS = (Column("p50 ms", _lateness("p50_ms"), rank=7), Column("p99 ms", _lateness("p99_ms"), rank=5))
POLLER = Column("poller", of_shard(lambda shard: shard.poller), rank=8)
DEAD = Column("dead", _number("dead"), rank=5)
HEAD = Column("first due", of_shard(_head), rank=7)
NODE = Column("node", of_shard(lambda shard: shard.node), rank=9)


class ShardTable:
    """Columns, and the looks of the last second."""

    def __init__(self, *columns: Column, rates: bool = True) -> None:
        first = Column("shard", lambda row: str(row.shard) if isinstance(row, ShardStats) else "all", rank=0)
        rate = Column("per s", lambda row: self.rate(row.shard if isinstance(row, ShardStats) else None), rank=4)
        self._columns = [first]
        for column in columns:
            self._columns += (column, rate) if column is DISPATCHED and rates else (column,)
        self._needed: dict[str, int] = {}
        """The most that a column has ever needed, by its title: in a live table none comes and goes with a digit."""
        self._looks: deque[tuple[float, dict[int, int]]] = deque()
        self._span = 0.0
        self._now: dict[int, int] = {}

    def look(self, stats: Stats, now_s: float) -> None:
        """The newest numbers."""
        self._now = {shard.shard: shard.dispatched for shard in stats.shards}
        while len(self._looks) > 1 and now_s - self._looks[1][0] >= RATE_S:
            self._looks.popleft()
        self._looks.append((now_s, self._now))
        self._span = now_s - self._looks[0][0]

    def rate(self, shard: int | None = None) -> str:
        """Tasks dispatched in a second, in one shard or in all."""
        if not self._span:
            return "-"
        before = self._looks[0][1]
        shards = self._now if shard is None else (shard,)
        return f"{sum(self._now[s] - before.get(s, 0) for s in shards) / self._span:,.0f}"

    def table(self, stats: Stats, *, width: int, height: int | None) -> Table:
        """A table of as many columns and shards as have room, and the totals of all."""
        rows: list[Row] = [*stats.shards, stats]
        cells = {column.title: [column.cell(row) for row in rows] for column in self._columns}
        columns = self._fitting(cells, width)
        table = Table(box=box.SIMPLE_HEAD, show_footer=True, show_edge=False, header_style="bold", footer_style="bold")
        for column in columns:
            table.add_column(column.title, cells[column.title][-1], justify="right", no_wrap=True)
        room = len(stats.shards) if height is None else max(1, height - AROUND)
        shown = stats.shards if len(stats.shards) <= room else stats.shards[: room - 1]
        for at, shard in enumerate(shown):
            table.add_row(
                *(cells[column.title][at] for column in columns),
                style="red" if shard.poller == "failing" or shard.error else None,
            )
        if len(shown) < len(stats.shards):
            table.add_row(f"+{len(stats.shards) - len(shown)}")
        return table

    def _fitting(self, cells: dict[str, list[str]], width: int) -> list[Column]:
        """The columns that have room, in their order."""
        for title, texts in cells.items():
            self._needed[title] = max(self._needed.get(title, 0), len(title), *map(len, texts))
        fitting = list(self._columns)
        while len(fitting) > 1 and sum(self._needed[column.title] + BETWEEN for column in fitting) > width + 1:
            fitting.remove(max(fitting, key=lambda column: column.rank))
        return fitting

    def line(self, stats: Stats) -> str:
        """All shards in one line."""
        lateness = stats.lateness
        return (
            f"pending {stats.scheduled:,}  ready {stats.ready:,}  dispatched {stats.dispatched:,}  {self.rate()}/s  "
            f"late p50 {milliseconds(lateness.p50_ms)} p99 {milliseconds(lateness.p99_ms)} ms"
        )


class LiveShardTable:
    """A board that redraws itself in place on a terminal. As a context manager: it leaves the last picture."""

    def __init__(self, board: ShardTable) -> None:
        self._board = board
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> LiveShardTable:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, stats: Stats | None, *, below: str) -> None:
        """The table, once there is something to show, and a sentence below it."""
        size = self._console.size
        said = Text(below, overflow="fold")
        if stats is None:
            self._live.update(said, refresh=True)
            return
        height = size.height - len(said.wrap(self._console, size.width))
        self._live.update(Group(self._board.table(stats, width=size.width, height=height), said), refresh=True)


def print_table(board: ShardTable, stats: Stats) -> None:
    """The whole table once, on stdout; as wide as it needs to be when that is no terminal."""
    console = _console()
    console.print(board.table(stats, width=console.width, height=None))


def print_rows(titles: Sequence[str], rows: Iterable[Sequence[str]], *, totals: Sequence[str] = ()) -> None:
    """Rows once, on stdout, with a last line of totals. Columns whose title begins with a blank are numbers.

    Nothing is cut where it is too long, but goes on in the next line: a row may be about an id that somebody copies.
    Where there is little room, columns between the first and the last are left out, those on the right first.
    """
    console = _console()
    cells = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in titles]
    needed = [max(map(len, (title.strip(), *column))) + BETWEEN for title, column in zip(titles, cells, strict=True)]
    needed[-1] = min(needed[-1], TEXT)
    shown = list(range(len(titles)))
    while len(shown) > 2 and sum(needed[at] for at in shown) > console.width + 1:
        shown.pop(-2)
    table = Table(
        box=box.SIMPLE_HEAD, show_footer=bool(totals), show_edge=False, header_style="bold", footer_style="bold"
    )
    for at in shown:
        table.add_column(
            titles[at].strip(),
            totals[at] if totals else "",
            justify="right" if titles[at].startswith(" ") else "left",
            no_wrap=0 < at < len(titles) - 1 or (at == 0 and needed[0] <= console.width // 2),
            overflow="fold",
        )
    for row in zip(*(cells[at] for at in shown), strict=True):
        # as text: in what others wrote, brackets are no markup
        table.add_row(*map(Text, row))
    console.print(table)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=UNBOUND)
