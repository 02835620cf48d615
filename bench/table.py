"""Results are shown: progress on stderr during the run, the table on stdout at its end, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from bench.figures import Figure

PLAIN_WIDTH = 180
"""The width of output that goes to a file."""

PER_RUN = ("when", "commit", "load before")
"""Facts that differ from run to run on one machine."""


@dataclass(frozen=True, slots=True)
class Result:
    """A figure and the suite it comes from."""

    suite: str
    figure: Figure


class Progress:
    """The current work: a line that changes on a terminal, a line for each step elsewhere."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status("")
        self._where = ""

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._status.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._status.stop()

    def enter(self, suite: str, position: int, count: int) -> None:
        self._where = f"{position}/{count} {suite}"
        self.say("starting servers")

    def say(self, doing: str) -> None:
        if self._console.is_terminal:
            self._status.update(f"{self._where}: {doing} …")
        else:
            self._console.print(f"{self._where}: {doing} …", markup=False, soft_wrap=True)

    def found(self, figure: Figure) -> None:
        self._console.print(f"  {figure.name}: {shown(figure.value)} {figure.unit}", markup=False, soft_wrap=True)


def output(plain_width: int = PLAIN_WIDTH) -> Console:
    """Returns stdout, as wide as the terminal or, without one, as ``plain_width``."""
    return Console(width=None if sys.stdout.isatty() else plain_width, highlight=False)


def of_numbers(first: str, columns: Iterable[str], *, title: str | None = None, no_wrap: bool = False) -> Table:
    """Makes an empty table with names in the first column and numbers in the others."""
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column(first, no_wrap=no_wrap)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=no_wrap)
    return table


def show_facts(console: Console, facts: Mapping[str, str]) -> None:
    for name, fact in facts.items():
        console.print(f"{name + ':':<13}{fact}", markup=False)


def show(results: Sequence[Result], facts: Mapping[str, str]) -> None:
    """Shows the table, and under it what it was measured on."""
    console = output()
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("suite")
    table.add_column("name", ratio=3)
    table.add_column("figure", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("percentiles", ratio=2)
    table.add_column("reference", ratio=3)
    last = ""
    for result in results:
        figure = result.figure
        if last and result.suite != last:
            table.add_section()
        table.add_row(
            result.suite if result.suite != last else "",
            figure.name,
            shown(figure.value),
            figure.unit,
            ", ".join(f"{share} {shown(value)}" for share, value in figure.percentiles.items()),
            figure.reference,
        )
        last = result.suite
    console.print(table)
    show_facts(console, facts)


def save(
    file: Path, results: Sequence[Result], facts: Mapping[str, str], *, complete: bool, merge: bool = False
) -> None:
    """Writes everything as one JSON object. ``complete`` is true if every chosen suite came to its end.

    ``merge`` keeps the file's figures of other suites, and its facts, those of the run that measured most. Each suite
    tells the commit and the load of its measurement.
    """
    figures = [{"suite": result.suite, **asdict(result.figure)} for result in results]
    ran = dict.fromkeys(result.suite for result in results)
    suites = {suite: {name: facts[name] for name in PER_RUN if name in facts} for suite in ran}
    if merge and file.exists():
        before = msgspec.json.decode(file.read_bytes())
        figures = [figure for figure in before["figures"] if figure["suite"] not in ran] + figures
        suites = {**before["suites"], **suites}
        complete, facts = complete and before["complete"], before["facts"]
    head = msgspec.json.format(msgspec.json.encode({"complete": complete, "facts": facts, "suites": suites}), indent=1)
    # each figure has a line, so that a difference of two files reads as one of figures
    lines = b",\n  ".join(msgspec.json.encode(figure) for figure in figures)
    file.write_bytes(head.removesuffix(b"\n}") + b',\n "figures": [\n  ' + lines + b"\n ]\n}\n")


def shown(value: float) -> str:
    """Writes at least three digits, and no digit after the point that means nothing.

    >>> shown(123456.7), shown(0.1234), shown(12.345)
    ('123,457', '0.123', '12.3')
    """
    size = abs(value)
    return (
        f"{value:,.0f}"
        if size >= 100
        else f"{value:.1f}"
        if size >= 10
        else f"{value:.2f}"
        if size >= 1
        else f"{value:.3f}"
    )
