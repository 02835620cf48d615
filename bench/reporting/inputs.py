"""The JSON files of the benches. Each may be missing: its section of the report then says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench import figures
from bench.chaos import Chaos, Soak
from bench.nodes.costs import Measured
from bench.nodes.model import Model
from bench.peers.outcome import Outcome

T = TypeVar("T")

RESULTS, OLDEST, PEERS, NODES = "results.json", "results-redis7.json", "peers.json", "nodes.json"
CHAOS, SOAK = "chaos.json", "soak.json"

MAKING = {
    RESULTS: f"python -m bench --json bench/report/{RESULTS}",
    OLDEST: f"python -m bench --server redis7 --json bench/report/{OLDEST}",
    PEERS: f"python -m bench.peers --json bench/report/{PEERS}",
    NODES: f"python -m bench.nodes --json bench/report/{NODES}",
    CHAOS: f"python -m tests.chaos --faults 1000 --tasks 10000000 --json bench/report/{CHAOS}",
    SOAK: f"python -m tests.chaos soak --hours 2 --json bench/report/{SOAK}",
}
"""The command that makes each file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure(figures.Figure):
    """A figure and the suite it comes from."""

    suite: str


class Results(msgspec.Struct):
    """The file of ``python -m bench``."""

    complete: bool
    facts: dict[str, str]
    figures: list[Figure]
    suites: dict[str, dict[str, str]] = {}
    """Suites that were measured later than the rest have the instant of their own here."""

    def of(self, *suites: str) -> list[Figure]:
        """Returns the figures of these suites, suite by suite."""
        return [figure for suite in suites for figure in self.figures if figure.suite == suite]

    def curve(self, name: str) -> list[Figure]:
        return [figure for figure in self.figures if figure.at.get("curve") == name]

    def first(self, suite: str, begins: str) -> Figure | None:
        """Returns the first figure whose name begins so. The rest of a name tells sizes."""
        return next((figure for figure in self.of(suite) if figure.name.startswith(begins)), None)


class Nodes(msgspec.Struct):
    """The file of ``python -m bench.nodes``."""

    facts: dict[str, str]
    measured: list[Measured] = []
    model: Model | None = None
    failover: dict[str, Any] | None = None
    expand: dict[str, Any] | None = None


class Inputs(msgspec.Struct):
    results: Results | None
    oldest: Results | None
    """The same on the oldest server that is supported."""
    peers: Outcome | None
    nodes: Nodes | None
    chaos: Chaos | None
    soak: Soak | None


def read(folder: Path) -> Inputs:
    """Reads all files. Raises ``msgspec.ValidationError`` for a file of another form; its message names the file."""
    return Inputs(
        _read(folder / RESULTS, Results),
        _read(folder / OLDEST, Results),
        _read(folder / PEERS, Outcome),
        _read(folder / NODES, Nodes),
        _read(folder / CHAOS, Chaos),
        _read(folder / SOAK, Soak),
    )


def _read(file: Path, form: type[T]) -> T | None:
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=form)
    except msgspec.DecodeError as exc:
        raise msgspec.ValidationError(f"{file} is not what `{MAKING[file.name]}` writes; make it again: {exc}") from exc


def numbers(values: Mapping[str, Any], *, under: str = "") -> dict[str, float]:
    """Returns all plain numbers, with the path of each as its name. Series are left out."""
    found: dict[str, float] = {}
    for name, value in values.items():
        path = f"{under}, {name}" if under else name
        if isinstance(value, Mapping):
            found |= numbers(value, under=path)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[path] = float(value)
    return found


def steps(values: Mapping[str, Any] | None, series: str, column: str) -> list[tuple[float, float]]:
    """Returns one column of a series against its seconds, or nothing where there is no such series."""
    return [
        (float(row["s"]), float(row[column]))
        for row in (values or {}).get(series, [])
        if isinstance(row.get(column), (int, float))
    ]


def distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
