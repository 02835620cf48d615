"""The results of peers: the rows of each round, their medians, the table and the JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from bench.table import of_numbers, output, show_facts, shown


class Rows(msgspec.Struct):
    """The figures of one round. None was not measured."""

    schedule_per_s: float | None = None
    drain_per_s: float | None = None
    lateness_p50_ms: float | None = None
    lateness_p99_ms: float | None = None
    bytes_per_task: float | None = None
    idle_commands_per_s: float | None = None
    drain_tasks: int | None = None
    remarks: list[str] = []
    problems: list[str] = []


COLUMNS = {
    "schedule_per_s": "scheduled/s",
    "drain_per_s": "drained/s",
    "lateness_p50_ms": "late p50, ms",
    "lateness_p99_ms": "late p99, ms",
    "bytes_per_task": "bytes/task",
    "idle_commands_per_s": "idle cmds/s",
}
HIGHER_IS_BETTER = ("schedule_per_s", "drain_per_s")


class Peer(msgspec.Struct):
    """Everything about one peer, as it stands in the JSON."""

    name: str
    version: str
    how: str
    rows: dict[str, float | None] = {}
    """The medians of all rounds."""
    drain_tasks: int | None = None
    rounds: list[Rows] = []
    problem: str | None = None
    """The figures that could not be measured, and the reasons."""

    def add(self, rows: Rows) -> None:
        self.rounds.append(rows)
        self.rows = {column: self._median(column) for column in COLUMNS}
        self.drain_tasks = next((each.drain_tasks for each in self.rounds if each.drain_tasks), None)
        # a figure that failed once and came another time is no problem of the peer
        missing = {column for column, value in self.rows.items() if value is None}
        problems = [problem for each in self.rounds for problem in each.problems]
        self.problem = "; ".join(dict.fromkeys(problems)) if missing and problems else None

    @property
    def remarks(self) -> list[str]:
        return list(dict.fromkeys(remark for each in self.rounds for remark in each.remarks))

    @property
    def has_lateness(self) -> bool:
        return any(each.lateness_p50_ms is not None for each in self.rounds)

    def _median(self, column: str) -> float | None:
        values = [value for each in self.rounds if (value := getattr(each, column)) is not None]
        return statistics.median(values) if values else None


class Outcome(msgspec.Struct):
    facts: dict[str, str]
    peers: list[Peer]

    def save(self, file: Path) -> None:
        file.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def best(peers: Sequence[Peer]) -> Mapping[str, str]:
    """Returns the name of the best peer in each column. A handler that runs too early is not ahead."""
    ahead: dict[str, str] = {}
    for column in COLUMNS:
        measured = [(value, peer.name) for peer in peers if (value := peer.rows.get(column)) is not None and value >= 0]
        if measured:
            ahead[column] = (max if column in HIGHER_IS_BETTER else min)(measured)[1]
    return ahead


def show(outcome: Outcome) -> None:
    """Shows the table, then the use of each peer with its problems, and the machine."""
    console = output()
    ahead = best(outcome.peers)
    table = of_numbers("peer", COLUMNS.values(), no_wrap=True)
    for peer in outcome.peers:
        cells = [_cell(peer.rows.get(column), first=ahead.get(column) == peer.name) for column in COLUMNS]
        table.add_row(peer.name, *cells)
    console.print(table)
    console.print("* ahead of all others in this column; – not measured", markup=False)
    for peer in outcome.peers:
        drained = f"; {peer.drain_tasks:,} tasks drained" if peer.drain_tasks else ""
        console.print(f"{peer.name}: {peer.version}; {peer.how}{drained}", markup=False)
        for remark in peer.remarks:
            console.print(f"  {remark}", markup=False)
        if peer.problem:
            console.print(f"  NOT MEASURED: {peer.problem}", markup=False)
    show_facts(console, outcome.facts)


def _cell(value: float | None, *, first: bool) -> str:
    if value is None:
        return "–"
    return f"{shown(value)}{' *' if first else '  '}"
