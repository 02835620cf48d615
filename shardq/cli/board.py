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

AROUND = 6
"""Lines of a terminal that are not for shards: header, rules, totals, the line below, and the cursor's."""

WIDE = 100

UNBOUND = 1000
"""Columns where there is no terminal: nothing is cut that can be read at all."""

Row = ShardStats | Stats


@dataclass(frozen=True, slots=True)
class Column:
    title: str
    cell: Callable[[Row], str]
    wide: bool = False
    """Only shown on a wide terminal."""


def seen(row: Row) -> bool:
    """Whether its counts say something."""
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


COUNTS = (
    Column("pending", _number("scheduled")),
    Column("ready", _number("ready")),
    Column("leased", _number("leased")),
)
DISPATCHED = Column("dispatched", _number("dispatched"))
LATENESS = (Column("p50 ms", _lateness("p50_ms")), Column("p99 ms", _lateness("p99_ms")))
POLLER = Column("poller", of_shard(lambda shard: shard.poller), wide=True)
DEAD = Column("dead", _number("dead"))
HEAD = Column("first due", of_shard(_head))
NODE = Column("node", of_shard(lambda shard: shard.node), wide=True)


class Board:
    """Columns, and the looks of the last second."""

    def __init__(self, *columns: Column, rates: bool = True) -> None:
        self._columns = columns
        self._rates = rates
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
        """As many shards as have room, and the totals of all."""
        columns = [column for column in self._columns if width >= WIDE or not column.wide]
        table = Table(box=box.SIMPLE_HEAD, show_footer=True, show_edge=False, header_style="bold", footer_style="bold")
        table.add_column("shard", "all", justify="right", no_wrap=True)
        for column in columns:
            table.add_column(column.title, column.cell(stats), justify="right", no_wrap=True)
            if column is DISPATCHED and self._rates:
                table.add_column("per s", self.rate(), justify="right", no_wrap=True)
        room = len(stats.shards) if height is None else max(1, height - AROUND)
        shown = stats.shards if len(stats.shards) <= room else stats.shards[: room - 1]
        for shard in shown:
            cells = [str(shard.shard)]
            for column in columns:
                cells.append(column.cell(shard))
                if column is DISPATCHED and self._rates:
                    cells.append(self.rate(shard.shard))
            table.add_row(*cells, style="red" if shard.poller == "failing" or shard.error else None)
        if len(shown) < len(stats.shards):
            table.add_row(f"+{len(stats.shards) - len(shown)}")
        return table

    def line(self, stats: Stats) -> str:
        """All shards in one line."""
        lateness = stats.lateness
        return (
            f"pending {stats.scheduled:,}  ready {stats.ready:,}  dispatched {stats.dispatched:,}  {self.rate()}/s  "
            f"late p50 {milliseconds(lateness.p50_ms)} p99 {milliseconds(lateness.p99_ms)} ms"
        )


class LiveBoard:
    """A board that redraws itself in place on a terminal. As a context manager: it leaves the last picture."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> LiveBoard:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def show(self, stats: Stats | None, *, below: str) -> None:
        """The table, once there is something to show, and a line below it."""
        size = self._console.size
        parts = [Text(below, no_wrap=True, overflow="ellipsis")]
        if stats is None:
            self._live.update(parts[0], refresh=True)
            return
        self._live.update(Group(self._board.table(stats, width=size.width, height=size.height), *parts), refresh=True)


def print_table(board: Board, stats: Stats) -> None:
    """The whole table once, on stdout; as wide as it needs to be when that is no terminal."""
    console = _console()
    console.print(board.table(stats, width=console.width, height=None))


def print_rows(titles: Sequence[str], rows: Iterable[Sequence[str]], *, totals: Sequence[str] = ()) -> None:
    """Rows once, on stdout, with a last line of totals. Columns whose title begins with a blank are numbers.

    Nothing is cut where it is too long, but goes on in the next line: a row may be about an id that somebody copies.
    """
    table = Table(
        box=box.SIMPLE_HEAD, show_footer=bool(totals), show_edge=False, header_style="bold", footer_style="bold"
    )
    for position, title in enumerate(titles):
        table.add_column(
            title.strip(),
            totals[position] if totals else "",
            justify="right" if title.startswith(" ") else "left",
            no_wrap=0 < position < len(titles) - 1,
            overflow="fold",
        )
    for row in rows:
        # as text: in what others wrote, brackets are no markup
        table.add_row(*map(Text, row))
    _console().print(table)


def _console() -> Console:
    console = Console()
    return console if console.is_terminal else Console(width=UNBOUND)
