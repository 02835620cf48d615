"""Findings are shown on stdout, and saved as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench.nodes.costs import Measured
from bench.nodes.expand import Expand
from bench.nodes.failover import Failover
from bench.nodes.model import Model
from bench.reporting.inputs import numbers
from bench.table import of_numbers, output, show_facts, shown


@dataclass(slots=True)
class Findings:
    """All findings so far. A part that was not reached is missing."""

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
    """Shows every number by its path. The report has the model's points and the series, too."""
    console = output()
    table = of_numbers("finding", ("",))
    told = msgspec.to_builtins(findings)
    told["measured"] = {f"masters: {each.pop('masters')}": each for each in told["measured"]}
    for path, number in numbers(told).items():
        table.add_row(path.replace("_", " "), shown(number))
    console.print(table)
    show_facts(console, findings.facts)
