"""Tables on stdout, with as many columns as have room; a cell is never cut, and those without room are named below.
Used by every command that shows rows.

Nothing else makes tables with rich, which is loaded when the first one is drawn: most commands show none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from shardq.model.printable import printable

if TYPE_CHECKING:
    from rich.table import Table as RichTable

BETWEEN = 3
"""Blanks between two columns."""

TEXT = 24
"""The least width of a last column of text; longer text goes on in the next line."""

UNBOUND = 1000
"""The width where there is no terminal: everything can be read there."""

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    title: str
    cell: Callable[[Row], str]
    rank: int = 0
    """Where not all columns have room, those of the highest rank are left out first; those of rank 0 always stay."""
    text: bool = False
    """Text stands on the left, and goes on in the next line where it is long: it may be an id that somebody copies.
    Everything else stands on the right, on one line.
    """


class Table(Generic[Row]):
    """Columns for rows of one kind. Rows for which ``red`` is true are shown in red."""

    def __init__(
        self,
        *columns: Column[Row],
        red: Callable[[Row], bool] = lambda row: False,
        before: Table[Row] | None = None,
    ) -> None:
        """``before``: the table in whose place this one comes, with the same columns."""
        self._columns = columns
        self._red = red
        self._widest = [len(column.title) for column in columns]
        """The width that each column has ever needed: in a live table none comes and goes with a digit."""
        self.left_out: list[str] = []
        """The titles of the columns that had no room at the last drawing."""
        if before is not None:
            self._widest = list(map(max, self._widest, before._widest))

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
            self._widest[at] = max(self._widest[at], *map(len, texts))
        shown = self._fitting(width)
        self.left_out = [column.title for at, column in enumerate(self._columns) if at not in shown]
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
        shown = list(range(len(needed)))
        while sum(needed[at] for at in shown) > width + 1:
            last = max(shown, key=lambda at: self._columns[at].rank)
            if not self._columns[last].rank:
                break
            shown.remove(last)
        return shown
