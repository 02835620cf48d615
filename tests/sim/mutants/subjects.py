"""What is mutated, and how a mutant is put in place: scripts, and functions of modules.

A mutant is put in place in a fork, where everything is imported: a ``Script`` gets another text, a function another
code. So whoever has either of them has the mutant.
"""

from __future__ import annotations

import gc
import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import FunctionType

from shardq.core.scripts import Script, script
from tests.sim.branches.points import points
from tests.sim.branches.reached import ROOT
from tests.sim.branches.scripts import assembled, sources
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.python import functions_of, key_of, modules
from tests.sim.search.kinds import KEYED
from tests.support.tiers import AT_EACH_CHANGE


def put_in_place(mutant: Mutant) -> None:
    """From here on this process has the mutant."""
    if mutant.file in sources():
        changed = {mutant.file: mutant.applied(sources()[mutant.file].text)}
        for keyed in (False, True):  # runs have both
            put_scripts_in_place(assembled(changed, keyed=keyed), keyed=keyed)
    else:
        _put_module_in_place(mutant)


def scripts_of(mutant: Mutant) -> dict[str, Script]:
    """The scripts that are others by it."""
    return assembled({mutant.file: mutant.applied(sources()[mutant.file].text)})


def put_scripts_in_place(scripts: Mapping[str, Script], *, keyed: bool = KEYED > 0) -> None:
    for name, changed in scripts.items():
        # without keys, it is two values of the cache
        for ours in [script(name, True)] if keyed else [script(name), script(name, False)]:
            object.__setattr__(ours, "text", changed.text)
            object.__setattr__(ours, "sha", changed.sha)


def place_of(mutant: Mutant) -> str:
    """The branch around it, or its line: what a trial must come by. ``FILE: `` where there is none around it."""
    if mutant.file not in sources():
        return f"{mutant.file}:{mutant.change.line}"
    inner: tuple[int, str] = (-1, f"{mutant.file}: ")
    for point in points():
        if point.file == mutant.file and point.start <= mutant.change.start and mutant.change.end <= point.end:
            inner = max(inner, (point.start, point.name))
    return inner[1]


@dataclass(frozen=True)
class Subject:
    """What a run of mutants is about, and what may kill them."""

    name: str
    """That of the folder of its results."""
    folders: tuple[str, ...]
    """Tests."""
    sources: tuple[str, ...]
    """With the folders of tests they tell if a survey is still true."""
    stages: tuple[str, ...]
    """In their order."""
    is_timed: bool = False
    """True if its tests wait, so that a slow machine may make them fail: a kill counts if the test passes otherwise."""
    marks: str = ""
    """Which of its tests, as for pytest's -m; empty: all."""

    @property
    def modules(self) -> list[str]:
        """Those whose lines are places; none for scripts, which have branches."""
        return modules() if self.is_timed else []

    @property
    def at_each_change(self) -> Subject:
        """The same mutants, with the tests of `make test` alone."""
        return replace(self, name=f"{self.name}-at-each-change", stages=("tests", "rest"), marks=AT_EACH_CHANGE)


SCRIPTS = Subject("scripts", ("tests/lua",), ("shardq/lua",), ("tests", "quick", "rest", "minute"))

OPERATIONS = Subject(
    "operations",
    ("tests/lua", *(f"tests/{folder}" for folder in ("producer", "consumer", "dispatcher", "resharding"))),
    ("shardq/lua", "shardq/core"),
    ("quick", "tests", "rest", "minute"),
    is_timed=True,
)
"""The tests of scripts are theirs, too: they make their calls by them."""


# ---- functions


def _put_module_in_place(mutant: Mutant) -> None:
    path = ROOT / mutant.file
    text = path.read_bytes()
    before, after = functions_of(text, str(path)), functions_of(mutant.applied(text), str(path))
    changed = {name for name, code in before.items() if after[name] != code}
    assert changed, f"a mutant that changes no function: {mutant.where}"
    importlib.import_module(mutant.file.removesuffix(".py").replace("/", "."))
    gc.unfreeze()  # what pytest's session has put out of its sight
    done = 0
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == str(path):
            name = key_of(each.__code__)
            if name in changed:
                each.__code__ = after[name]
                done += 1
    assert done, f"no function has the code of {mutant.where}"


def tests_of(subjects: Sequence[str], calls: Mapping[str, tuple[list[str], float]]) -> list[str]:
    """The tests that come by one of these subjects, those that are most likely to be about it first: that call little
    else, and of several subjects each in turn.
    """
    turns: Counter[str] = Counter()
    found: dict[str, tuple[int, int, float]] = {}
    for test, (called, seconds) in sorted(calls.items(), key=lambda each: (len(each[1][0]), each[1][1])):
        if common := sorted(set(called).intersection(subjects)):
            rarest = min(common, key=lambda each: turns[each])
            turns[rarest] += 1
            found[test] = (min(3, len(called)), turns[rarest], seconds)
    return sorted(found, key=lambda test: found[test])
