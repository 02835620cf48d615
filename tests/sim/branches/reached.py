"""What was reached while runs went on, what never was, and what need not be.

    with counting() as reached:
        run(drawn(1), instead_of_ours())
    wrong(reached)      # one line for each branch that was not reached, and for each reason that is out of date

``Reached`` of several processes are added. Of the scripts, branches are those of ``points``; of the product's recovery,
those of coverage.py: the ways out of a line that has more than one, and the lines themselves.
"""

from __future__ import annotations

import inspect
import json
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any

import coverage

from tests.sim.branches.points import points
from tests.sim.model import server

ROOT = Path(__file__).parents[3]

MODULES = (
    "shardq/core/topology_recovery.py",
    "shardq/core/replicas.py",
    "shardq/core/topology_upkeep.py",
    "shardq/core/drivers/retry.py",
    "shardq/core/producer/pushing.py",
    "shardq/core/resharding/migration.py",
    "shardq/core/resharding/migrator.py",
    "shardq/core/resharding/resizing.py",
)
"""What goes on after lost answers, stale topologies, and while tasks move."""

OUT_OF_REACH = Path(__file__).parent / "out_of_reach.toml"


@dataclass
class Reached:
    """What was reached. Can be pickled, and added to."""

    branches: Counter[str] = field(default_factory=Counter)
    """Of the scripts, by the name of a point: on how many servers, each counted once."""
    arcs: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """Of modules: which line came after which, as coverage.py has it."""

    def __iadd__(self, other: Reached) -> Reached:
        self.branches.update(other.branches)
        for module, arcs in other.arcs.items():
            self.arcs.setdefault(module, set()).update(arcs)
        return self


@contextmanager
def counting(*, of_modules: bool = True) -> Iterator[Reached]:
    """Counts what is reached in this block, in this thread. The scripts must be those of ``points``.

    ``of_modules``: False where only scripts are run.
    """
    reached = Reached()
    numbers: Counter[int] = Counter()
    watching = _coverage() if of_modules else None
    before, server.reached = server.reached, lambda number: numbers.update((number,))
    if watching is not None:
        watching.start()
    try:
        yield reached
    finally:
        server.reached = before
        reached.branches.update({points()[number].name: count for number, count in numbers.items()})
        if watching is not None:
            watching.stop()
            data = watching.get_data()
            for module in MODULES:
                reached.arcs.setdefault(module, set()).update(data.arcs(str(ROOT / module)) or ())


def _coverage() -> coverage.Coverage:
    watching = coverage.Coverage(
        data_file=None,
        config_file=False,
        branch=True,
        concurrency="greenlet",  # simulated threads
        include=[str(ROOT / module) for module in MODULES],
        messages=False,
    )
    watching.set_option("run:disable_warnings", ["no-data-collected"])
    return watching


# ---- what was not reached


@dataclass(frozen=True)
class Place:
    """A branch of a script or a module."""

    name: str
    """The same when lines have moved."""
    where: str
    """As it is said to who looks for it."""


def missing(reached: Reached) -> list[Place]:
    """The branches that were never reached, out of reach or not."""
    places = [Place(point.name, str(point)) for point in points() if not reached.branches[point.name]]
    return [*places, *_missing_in_modules(reached)]


def wrong(reached: Reached, allowed: Mapping[str, str] | None = None) -> list[str]:
    """One line for each branch that was never reached and for which there is no reason, and for each reason that is out
    of date.
    """
    may_be_reached = seldom() if allowed is None else {}
    allowed = out_of_reach() if allowed is None else allowed
    places = {place.name: place for place in missing(reached)}
    told = [f"never reached: {place.where}" for name, place in places.items() if name not in allowed]
    return told + [
        f"out_of_reach.toml names what is reached, or is no branch any more: {name}"
        for name in allowed
        if name not in places and name not in may_be_reached
    ]


def summary(reached: Reached) -> str:
    """How many branches of the scripts were reached."""
    count = sum(reached.branches[point.name] > 0 for point in points())
    return f"{count:,} of {len(points()):,} branches of the scripts, {len(out_of_reach())} branches need not be"


@cache
def out_of_reach() -> dict[str, str]:
    """The branches that a night need not reach, and why."""
    return reasons(OUT_OF_REACH, "branches")


@cache
def seldom() -> dict[str, str]:
    """Those of them that some nights do reach, and the test that always does."""
    entries = tomllib.loads(OUT_OF_REACH.read_text(encoding="utf-8"))["because"]
    return {name: entry["shown_by"] for entry in entries if "shown_by" in entry for name in entry["branches"]}


def reasons(file: Path, what: str) -> dict[str, str]:
    """The names in a file of reasons, each with its own."""
    found: dict[str, str] = {}
    for entry in tomllib.loads(file.read_text(encoding="utf-8"))["because"]:
        for name in entry[what]:
            assert name not in found, f"{file.name} names it twice: {name}"
            found[name] = entry["reason"]
    return found


def _missing_in_modules(reached: Reached) -> Iterator[Place]:
    watching = _coverage()
    data = watching.get_data()
    data.add_arcs({str(ROOT / module): reached.arcs.get(module, set()) for module in MODULES})
    data.touch_files([str(ROOT / module) for module in MODULES])
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        watching.json_report(outfile=report.name)
        files: dict[str, Any] = json.load(report)["files"]
    for file, told in files.items():
        module = (ROOT / file).relative_to(ROOT).as_posix()
        text = (ROOT / module).read_text(encoding="utf-8")
        yield from _missing_in(module, text, set(told["missing_lines"]), told["missing_branches"])


def _missing_in(
    module: str, text: str, missing_lines: set[int], missing_branches: Sequence[tuple[int, int]]
) -> Iterator[Place]:
    """Of lines that follow each other the first alone, and of ways out of a line only those that no such line tells."""
    lines = text.splitlines()
    within = _within_functions(compile(text, module, "exec"))
    lost = missing_lines & within

    def place(line: int, told: str) -> Place:
        code = lines[line - 1].strip()
        number = sum(each.strip() == code for each in lines[:line])  # of all such lines, whichever are missing
        return Place(f"{module}: {told}" + (f" ({number})" if number > 1 else ""), f"{module}:{line}: {told}")

    for line in sorted(lost):
        before = next((each for each in range(line - 1, 0, -1) if each in within or each in missing_lines), 0)
        if before not in lost:
            yield place(line, lines[line - 1].strip())
    for start, end in sorted((start, end) for start, end in missing_branches):
        if start in within and start not in lost and end not in lost:
            target = "its end" if end < 0 else lines[end - 1].strip()
            yield place(start, f"{lines[start - 1].strip()} → {target}")


def _within_functions(code: CodeType) -> set[int]:
    """The lines that are run when a function is: all others were when the module was imported."""
    within: set[int] = set()
    for each in code.co_consts:
        if isinstance(each, CodeType):
            within |= _within_functions(each)
            if each.co_flags & inspect.CO_OPTIMIZED:
                within |= {line for _, _, line in each.co_lines() if line is not None and line != each.co_firstlineno}
    return within
