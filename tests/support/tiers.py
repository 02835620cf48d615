"""Two tiers of tests: ``make test``, some minutes at each change, and ``make test-all``, before a change lands.

A test is *slow* if it takes one of SLOW, or is marked so by hand, as it takes more than a second. ``make test``
runs those that are not, and of each slow test that a page names, or that is marked ``promise``, the first case: so each
promise of the pages is tried once. It leaves out what guards a *tool* of this repository alone, such as the benches:
it is in a folder of its own, or marked so by hand. ``make test-all`` runs all.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

AT_EACH_CHANGE = "(not slow or promised) and not tool"
"""The tests of ``make test``, for pytest's -m; the Makefile has the same."""

SLOW = frozenset({"own_server", "own_cluster", "replica", "lasting_cluster"})
"""Fixtures of servers that a test has for itself, to end or to freeze them."""

TOOLS = ("bench", "chaos", "judge", "sim/branches", "sim/mutants")
"""The folders of tests of tools: what they guard is not shipped, but for a promise that a page names."""

TOLD_S, QUICK_S = 5.0, 0.5
"""A test that is not slow and takes longer is named in the end; so is a slow one that takes less than the other. A busy
machine makes five seconds of one.
"""

SPREAD = 0.6
"""The part of what a process is given first in which its slow tests lie."""

_NAMED = re.compile(r"`(?:tests/)?([\w/]+\.py)::(\w+)")


def promises() -> set[tuple[str, str]]:
    """The tests that pages name: file below tests/, and function."""
    pages = [ROOT / "README.md", *(ROOT / "shardq").rglob("*.md")]
    texts = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    return set(_NAMED.findall(texts))


@functools.cache
def promised_files() -> set[str]:
    return {file for file, _ in promises()}


def is_of_a_tool_alone(path: Path) -> bool:
    """True for a file of tests of a tool that promises nothing: `make test` need not load it."""
    if not path.match("test_*.py") or not any(path.is_relative_to(ROOT / "tests" / folder) for folder in TOOLS):
        return False
    return str(path.relative_to(ROOT / "tests")) not in promised_files() and "mark.promise" not in path.read_text(
        encoding="utf-8"
    )


def mark(items: Iterable[pytest.Item]) -> None:
    """Marks tests as slow and as those of tools, and the first case of each promise as promised."""
    named, seen = promises(), set[tuple[str, str]]()
    files = dict[Path, tuple[str, bool]]()
    for item in items:
        if SLOW.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
        if item.path not in files:
            file = item.path.relative_to(ROOT / "tests")
            files[item.path] = str(file), any(file.is_relative_to(folder) for folder in TOOLS)
        file_name, of_a_tool = files[item.path]
        place = file_name, getattr(item, "originalname", item.name)
        if place not in seen and (place in named or item.get_closest_marker("promise")):
            seen.add(place)
            item.add_marker("promised")
        elif of_a_tool:
            item.add_marker("tool")


def spread(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """The order in which all processes begin together, and end so: each is given a run of tests at first, and what one
    has left the others take over. Slow tests mostly wait, so they lie among quick ones, which mostly work, and not at
    the end, where others would wait for them. Those of a file stay together, as they may share a server.
    """
    quick = [item for item in items if not item.get_closest_marker("slow")]
    runs: list[list[list[pytest.Item]]] = [[] for _ in range(processes)]
    for _, of_file in groupby((item for item in items if item.get_closest_marker("slow")), lambda item: item.path):
        min(runs, key=lambda files: sum(map(len, files))).append(list(of_file))
    ordered = list[pytest.Item]()
    for number, files in enumerate(runs):
        some = quick[number * len(quick) // processes : (number + 1) * len(quick) // processes]
        step = SPREAD * len(some) / max(1, len(files))
        for place, slow in enumerate(files):
            ordered += [*some[round(place * step) : round((place + 1) * step)], *slow]
        ordered += some[round(len(files) * step) :]
    return ordered


def told(stats: Mapping[str, Sequence[object]]) -> list[str]:
    """Lines on tests that are in the wrong tier by what they took in this run."""
    took = defaultdict[str, float](float)
    slow = set[str]()
    for report in (each for reports in stats.values() for each in reports if isinstance(each, pytest.TestReport)):
        name = report.nodeid.partition("[")[0]
        took[report.nodeid] += report.duration if report.when == "call" or "slow" in report.keywords else 0.0
        if "slow" in report.keywords:
            slow.add(name)
    longest = defaultdict[str, float](float)
    for case, seconds in took.items():
        name = case.partition("[")[0]
        longest[name] = max(longest[name], seconds)
    long = sorted(name for name in longest.keys() - slow if longest[name] > TOLD_S)
    brief = sorted(name for name in slow if longest[name] < QUICK_S)
    lines = [f"took more than {TOLD_S:g} s, and is not marked slow: {name}, {longest[name]:.1f} s" for name in long]
    return lines + [f"took less than {QUICK_S:g} s, and is marked slow: {name}" for name in brief]
