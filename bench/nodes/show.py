"""Findings are shown as tables on stdout, which tell measured figures from modelled ones, and saved as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.nodes.costs import Measured
from bench.nodes.expand import Expand
from bench.nodes.failover import Failover
from bench.nodes.flow import Pushes
from bench.nodes.model import SHARDS, Model
from bench.nodes.timeline import Lateness
from bench.table import of_numbers, output, show_facts, shown

_PLAIN_WIDTH = 150
"""The width of output that goes to a file. It has sentences between the tables, which read better when shorter."""


@dataclass(slots=True)
class Findings:
    """All findings so far. A part that was not asked for, or not reached, is missing."""

    facts: Mapping[str, str]
    measured: list[Measured] = field(default_factory=list)
    model: Model | None = None
    failover: Failover | None = None
    expand: Expand | None = None


def save(file: Path, findings: Findings) -> None:
    """Writes one JSON object, with a line for each step of a series."""
    content = msgspec.to_builtins(findings)
    file.write_text(_lines(content) + "\n", encoding="utf-8")


def _lines(value: object, indent: str = "") -> str:
    """Returns JSON with a line for each flat entry, so that a difference of two files reads well."""
    inner = indent + " "
    if isinstance(value, dict) and any(isinstance(entry, dict | list) for entry in value.values()):
        entries = [f"{inner}{_text(key)}: {_lines(entry, inner)}" for key, entry in value.items()]
        return "{\n" + ",\n".join(entries) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"{inner}{_lines(entry, inner)}" for entry in value) + f"\n{indent}]"
    return _text(value)


def _text(value: object) -> str:
    if isinstance(value, float):
        value = round(value, 4)
    if isinstance(value, dict):
        value = {key: round(entry, 4) if isinstance(entry, float) else entry for key, entry in value.items()}
    return msgspec.json.encode(value).decode()


def show(findings: Findings) -> None:
    console = output(_PLAIN_WIDTH)
    if findings.measured:
        console.print(_costs(findings.measured))
        idle = ", ".join(f"{one.idle:.2%} with {one.masters}" for one in findings.measured)
        console.print(f"An idle master takes {idle} of a core; costs are what comes on top.\n", markup=False)
    if findings.model:
        console.print(_model(findings.model))
        console.print(f"{findings.model.formula}\n{findings.model.meaning}\n", markup=False)
    if findings.failover:
        _failover(console, findings.failover)
    if findings.expand:
        _expand(console, findings.expand)
    show_facts(console, findings.facts)


def _costs(measured: list[Measured]) -> Table:
    first = measured[0]
    table = of_numbers(
        "work",
        (
            *("masters", "tasks/s", "server µs/task", "client µs/task", "server busy", "client busy"),
            *(f"{what}: fullest ÷ mean" for what in ("tasks", "commands", "CPU")),
        ),
        title=f"Measured: {first.shards} shards on more and more masters, which all share the servers' cores",
    )
    for name in first.work:
        for one in measured:
            cost = one.work[name]
            table.add_row(
                name if one is first else "",
                str(one.masters),
                f"{cost.tasks_per_s:,.0f}",
                f"{cost.server_us:.2f}",
                f"{cost.client_us:.2f}",
                f"{cost.server_busy:.0%}",
                f"{cost.client_busy:.0%}",
                f"{cost.balance.tasks:.2f}",
                f"{cost.balance.commands:.2f}",
                f"{cost.balance.cpu:.2f}",
            )
        table.add_section()
    return table


def _model(model: Model) -> Table:
    by = model.calibration
    figures = ("imbalance", "tasks/s", "client cores for that")
    table = of_numbers(
        "masters",
        (f"{shards} shards: {figure}" for shards in SHARDS for figure in figures),
        title=f"Modelled, not measured: masters with a core each; a task's life costs servers {by.server_us:.1f} µs "
        f"and clients {by.client_us:.1f} µs",
    )
    table.columns[0].justify = "right"
    rows: dict[int, list[str]] = {}
    for point in model.points:
        row = rows.setdefault(point.nodes, [str(point.nodes)])
        row += (f"{point.imbalance:.2f}", f"{point.tasks_per_s:,.0f}", f"{point.client_cores:.1f}")
    for row in rows.values():
        table.add_row(*row)
    return table


def _failover(console: Console, it: Failover) -> None:
    console.print(
        _latenesses(
            f"Measured: one of {it.masters} masters killed while {it.per_s} tasks/s fall due and threads push",
            {
                "due → ready, all shards": it.ready["all"],
                f"due → ready, the {it.lost_shards} shards of the lost master": it.ready["lost"],
                "due → ready, the other shards": it.ready["other"],
                "due → claimed, all shards": it.claimed["all"],
                "due → claimed, the other shards": it.claimed["other"],
            },
        )
    )
    console.print(
        f"Promoted {it.promoted_s:.2f} s after the kill (node timeout {it.node_timeout_s:.0f} s); the first dispatch "
        f"{it.promotion_to_dispatch_s:.2f} s later (aim: ≤ 2), in all {it.lost_shards} shards after "
        f"{it.promotion_to_all_s:.2f} s.\n"
        f"Pushes, plain: {_pushes(it.pushes['plain'])}.\n"
        f"Pushes, replicated: {_pushes(it.pushes['replicated'])} (lost must be 0).\n"
        f"Lost of the tasks pushed well before: {it.lost_of_those_before}; given out twice: {it.given_out_twice}.\n",
        markup=False,
    )


def _expand(console: Console, it: Expand) -> None:
    rows = {f"due → ready, {phase}": found for phase, found in it.ready.items()}
    rows |= {f"due → claimed, {phase}": found for phase, found in it.claimed.items()}
    console.print(
        _latenesses(
            f"Measured: from {it.from_shards} to {it.to_shards} shards on {it.masters} masters, with {it.pending:,} "
            f"pending, while {it.per_s} tasks/s fall due and threads push",
            rows,
        )
    )
    console.print(
        f"In force after {it.in_force_s * 1000:.0f} ms; {it.moved:,} tasks moved after {it.done_s:.1f} s "
        f"({it.moved_per_s:,.0f}/s).\n"
        f"Pushes: {_pushes(it.pushes)}.\n"
        f"Lost of the tasks pushed before: {it.lost_of_those_before}; given out twice: {it.given_out_twice}.\n",
        markup=False,
    )


def _latenesses(title: str, rows: Mapping[str, Lateness | None]) -> Table:
    table = of_numbers(
        "tasks", ("count", "p50 ms", "p99 ms", "max ms", "later than 100 ms", "longest gap s"), title=title
    )
    for name, found in rows.items():
        if found is None:
            table.add_row(name, "0")
            continue
        table.add_row(
            name,
            f"{found.tasks:,}",
            shown(found.p50_ms),
            shown(found.p99_ms),
            shown(found.max_ms),
            f"{found.later_than_100_ms:.1%}",
            shown(found.gap_s),
        )
    return table


def _pushes(it: Pushes) -> str:
    unsure = f", {it.not_confirmed:,} not confirmed" if it.not_confirmed else ""
    return (
        f"{it.acknowledged:,} acknowledged{unsure}, {it.lost} of the acknowledged lost; one took "
        f"p50 {shown(it.p50_ms)}, p99 {shown(it.p99_ms)}, max {shown(it.max_ms)} ms"
    )
