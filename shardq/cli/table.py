"""Tables on stdout, with as many columns as have room; a cell is never cut, and those without room are named below. The
columns are those of ``engine.tables``, or a command's own. Used by every command that shows rows.

Nothing else makes tables with rich, which is loaded when the first one is drawn: most commands show none.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from shardq import Stats
from shardq.cli.options import Given
from shardq.cli.output import complain, say, shown, tell
from shardq.core.model.printable import printable
from shardq.engine.around import DISPATCHED, PER_SECOND, SHARD, Column, ShardColumn, ShardRow, View, is_failing

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.table import Table as RichTable

BETWEEN = 3
"""Blanks between two columns."""

TEXT = 24
"""The least width of a last column of text; longer text goes on in the next line."""

UNBOUND = 1000
"""The width where there is no terminal: everything can be read there."""

AROUND = 5
"""Lines of a terminal that a table needs beside its rows: title, rules, totals, and the cursor's."""

Row = TypeVar("Row")


class Table(Generic[Row]):
    """Columns for rows of one kind. Rows for which ``red`` is true are shown in red."""

    def __init__(
        self, *columns: Column[Row], red: Callable[[Row], bool] = lambda row: False, before: Table[Row] | None = None
    ) -> None:
        """``before``: the table in whose place this one comes, with the same columns."""
        self._columns = columns
        self._red = red
        self._widest = [0 if column.optional else len(column.title) for column in columns]
        """The width that each column has ever needed: in a live table none comes and goes with a digit. An optional
        one has 0 until it has a cell.
        """
        self.left_out: list[str] = []
        """The titles of the columns that had no room at the last drawing."""
        if before is not None:
            widest = dict(zip(map(_bare, before._columns), before._widest, strict=True))
            self._widest = [
                max(own, widest.get(_bare(each), 0)) for own, each in zip(self._widest, columns, strict=True)
            ]

    def print(self, rows: Sequence[Row], *, totals: Sequence[str] = ()) -> None:
        """The whole table, with ``totals`` as its last line."""
        from rich.console import Console

        console = Console()
        if not console.is_terminal:
            console.width = UNBOUND
        console.print(self.drawn(rows, totals=totals, width=console.width))
        if self.left_out:
            names = ", ".join(self.left_out)
            console.print(f"no room for: {names}; a wider terminal and --json show them", markup=False, highlight=False)

    def drawn(self, rows: Sequence[Row], *, totals: Sequence[str] = (), width: int, more: int = 0) -> RichTable:
        """The table for a terminal of that width. ``more``: the number of rows that have no room."""
        from rich import box
        from rich.table import Table as RichTable
        from rich.text import Text

        lines = [[printable(column.cell(row)) for column in self._columns] for row in rows]
        for at, texts in enumerate(zip(*lines, *([totals] if totals else ()), strict=True)):
            if width_of_cells := max(map(len, texts)):
                self._widest[at] = max(self._widest[at], len(self._columns[at].title), width_of_cells)
        shown = self._fitting(width)
        self.left_out = [
            column.title for at, column in enumerate(self._columns) if self._widest[at] and at not in shown
        ]
        table = RichTable(
            box=box.SIMPLE_HEAD, show_footer=bool(totals), show_edge=False, header_style="bold", footer_style="bold"
        )
        for at in shown:
            text = self._columns[at].text
            table.add_column(
                self._columns[at].title,
                totals[at] if totals else "",
                justify="left" if text else "right",
                no_wrap=not text or (at != shown[-1] and self._widest[at] + BETWEEN <= width // 2),
                overflow="fold",
            )
        for row, line in zip(rows, lines, strict=True):
            # as Text: brackets in a cell are no markup
            table.add_row(*(Text(line[at]) for at in shown), style="red" if self._red(row) else None)
        if more:
            table.add_row(f"+{more}")
        return table

    def _fitting(self, width: int) -> list[int]:
        """The places of the columns that have room."""
        needed = [widest + BETWEEN for widest in self._widest]
        if self._columns[-1].text:
            needed[-1] = min(needed[-1], TEXT)
        shown = [at for at, widest in enumerate(self._widest) if widest or not self._columns[at].optional]
        while sum(needed[at] for at in shown) > width + 1:
            last = max(shown, key=lambda at: self._columns[at].rank)
            if not self._columns[last].rank:
                break
            shown.remove(last)
        return shown


def _bare(column: Column[Any]) -> str:
    """The title without the arrow that tells the order."""
    return column.title.rstrip(" ▲▼")


def print_view(view: View[Row]) -> None:
    """A table with all of its rows, or the word for none."""
    if view.rows:
        Table(*view.columns, red=view.red).print(view.rows)
    else:
        say("none")


def show(given: Given, view: View[Row], fields: Callable[[Row], Any]) -> None:
    """Prints all rows of a view: as JSON the ``fields`` of each, or as a table."""
    if given.json:
        for row in view.rows:
            tell(fields(row))
    else:
        print_view(view)


# ---- shards


def print_shards(stats: Stats, *columns: ShardColumn) -> None:
    """The table of shards, once, with totals."""
    Table(SHARD, *columns, red=is_failing).print(
        stats.shards, totals=[column.cell(stats) for column in (SHARD, *columns)]
    )


class ShardView:
    """Shows stats over and over: on a terminal as a table that is redrawn in place, elsewhere as lines of totals.

    As a context manager it leaves the last table. ``plain_s``: the least time between two lines.
    """

    def __init__(self, *columns: ShardColumn, plain_s: float = 0.0) -> None:
        at = columns.index(DISPATCHED) + 1 if DISPATCHED in columns else 0
        self._columns = (*columns[:at], PER_SECOND, *columns[at:]) if at else columns
        self._table = Table[ShardRow](SHARD, *self._columns, red=is_failing)
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


@contextmanager
def progress(what: str, *, size: int | None = None, bar: bool = False) -> Iterator[Callable[..., object]]:
    """Shows ``what`` on stderr if that is a terminal; with ``bar`` how many bytes of that size are done. Yields the
    function that shows another ``description``, or an ``advance``.
    """
    if not sys.stderr.isatty():
        yield lambda **_: None
        return
    from rich import progress as rich
    from rich.console import Console

    text = rich.TextColumn("{task.description}")
    of_bytes = (text, rich.BarColumn(), rich.DownloadColumn(), rich.TimeRemainingColumn())
    columns = of_bytes if bar else (rich.SpinnerColumn(), text, rich.TimeElapsedColumn())
    with rich.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        yield partial(shown.update, shown.add_task(what, total=size))
