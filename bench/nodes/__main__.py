"""``python -m bench.nodes`` measures, models, shows progress, and prints the figures and what they were taken on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from bench import machine
from bench.arguments import add_json, add_server, command_parser
from bench.cores import Cores
from bench.nodes.costs import MASTERS, Measured, measured
from bench.nodes.expand import Expand, expand
from bench.nodes.failover import Failover, failover
from bench.nodes.model import Model, modelled
from bench.reporting.inputs import numbers
from bench.table import Progress, of_numbers, output, show_facts, shown
from cluster import entry, servers

_ABOUT = """\
Measures the cost of a task on clusters of several sizes, and the lateness of tasks while a cluster changes. It starts
its own servers on this machine, and takes some three minutes.
"""

_EXAMPLE = """\
example:
  python -m bench.nodes --json bench/report/nodes.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 2 not understood or not possible, 130 interrupted."""
    parser = command_parser("bench.nodes", _ABOUT, _EXAMPLE)
    add_server(parser)
    add_json(parser, "write the findings there too, if all parts are complete")
    options = parser.parse_args(arguments)
    binary = servers.binary(options.server)
    # the engine reports servers that are killed on purpose, which is no news
    logging.getLogger("shardq").setLevel(logging.CRITICAL)
    cores = Cores.divided(cluster=True)
    cores.pin_clients()
    topology = f"clusters of {', '.join(map(str, MASTERS))} masters (failover: 3 masters, 1 replica each)"
    found = Findings(machine.told(options.server, topology=topology, cores=cores))
    try:
        with Progress() as progress:
            progress.enter("costs", 1, 3)
            found.measured = measured(binary, cores=cores, say=progress.say)
            found.model = modelled(found.measured)
            progress.enter("failover", 2, 3)
            found.failover = failover(binary, cores=cores, say=progress.say)
            progress.enter("expand", 3, 3)
            found.expand = expand(binary, cores=cores, say=progress.say)
    finally:
        # findings before a failure are shown too
        show(found)
    if options.json is not None:
        save(options.json, found)
    return 0


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


if __name__ == "__main__":
    sys.exit(entry.run(main))
