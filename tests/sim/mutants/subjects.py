"""What is mutated, and how a mutant is put in place: scripts, and functions of modules.

A mutant is put in place in a fork, where everything is imported: a ``Script`` gets another text, a function another
code. So whoever has either of them has the mutant.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from types import CodeType, FunctionType

from shardq.core.scripts import Script, script
from tests.sim.branches.points import points
from tests.sim.branches.reached import ROOT
from tests.sim.branches.scripts import assembled, sources
from tests.sim.mutants.mutant import Mutant


def put_in_place(mutant: Mutant) -> None:
    """From here on this process has the mutant."""
    if mutant.file in sources():
        put_scripts_in_place(scripts_of(mutant))
    else:
        _put_module_in_place(mutant)


def scripts_of(mutant: Mutant) -> dict[str, Script]:
    """The scripts that are others by it."""
    return assembled({mutant.file: mutant.applied(sources()[mutant.file].text)})


def put_scripts_in_place(scripts: Mapping[str, Script]) -> None:
    for name, changed in scripts.items():
        ours = script(name)
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


# ---- functions


def _put_module_in_place(mutant: Mutant) -> None:
    path = ROOT / mutant.file
    text = path.read_bytes()
    before = _functions(compile(text, str(path), "exec"))
    after = _functions(compile(mutant.applied(text), str(path), "exec"))
    changed = {name for name in before.keys() & after.keys() if not _same(before[name], after[name])}
    outer = {name for name in changed if not any(name.startswith(f"{other}.") for other in changed)}
    assert outer, f"a mutant that changes no function: {mutant.where}"
    done = 0
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename == str(path):
            name = _key(each.__code__)
            if name in outer:
                each.__code__ = after[name]
                done += 1
    assert done, f"no function has the code of {mutant.where}"


def _key(code: CodeType) -> str:
    return f"{code.co_qualname}@{code.co_firstlineno}"


def _functions(code: CodeType) -> dict[str, CodeType]:
    """The code of all functions that are not within others."""
    found: dict[str, CodeType] = {}
    for each in code.co_consts:
        if isinstance(each, CodeType):
            found |= {_key(each): each} if each.co_flags & 1 else _functions(each)
    return found


def _same(one: CodeType, other: CodeType) -> bool:
    return one == other


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
