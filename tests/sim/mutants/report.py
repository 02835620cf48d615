"""What a run of mutants tells: a table by file, and who survives without a reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.sim.branches.reached import reasons
from tests.sim.mutants.killing import Result
from tests.sim.mutants.mutant import Mutant

SURVIVORS = Path(__file__).parent / "survivors.toml"

_COLUMNS = {"tests": "tests", "quick": "quick runs", "rest": "other tests", "minute": "in a minute"}


def printed(mutants: Sequence[Mutant], results: Mapping[str, Result], *, whole: bool) -> int:
    """Prints the report. Returns 1 if something is wrong. ``whole``: all mutants of these files were judged."""
    harmless = reasons(SURVIVORS, "mutants")
    print(table(mutants, results, harmless))
    wrong = [
        f"survives: {mutant.where}\n    {mutant.name}"
        for mutant in mutants
        if not results[mutant.name].killed_by and mutant.name not in harmless
    ]
    if whole:
        files = {mutant.file for mutant in mutants}
        survivors = {mutant.name for mutant in mutants if not results[mutant.name].killed_by}
        wrong += [
            f"survivors.toml names what is killed, or is no mutant any more: {name}"
            for name in harmless
            if name.partition(": ")[0] in files and name not in survivors
        ]
    for line in wrong:
        print(line)
    return int(bool(wrong))


def table(mutants: Sequence[Mutant], results: Mapping[str, Result], harmless: Mapping[str, str]) -> str:
    """Lines of a table in Markdown."""
    names = ["file", "mutants", *_COLUMNS.values(), "harmless", "not explained", "killed"]
    rows = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    whole: Counter[str] = Counter()
    for file in dict.fromkeys(mutant.file for mutant in mutants):
        counted = _counted([mutant for mutant in mutants if mutant.file == file], results, harmless)
        whole += counted
        rows.append(_row(f"`{file}`", counted))
    return "\n".join([*rows, _row("all", whole)])


def _counted(mutants: Sequence[Mutant], results: Mapping[str, Result], harmless: Mapping[str, str]) -> Counter[str]:
    counted: Counter[str] = Counter(all=len(mutants))
    for mutant in mutants:
        by = results[mutant.name].killed_by
        counted[by or ("harmless" if mutant.name in harmless else "not explained")] += 1
    return counted


def _row(name: str, counted: Counter[str]) -> str:
    killed = sum(counted[column] for column in _COLUMNS)
    cells = [counted["all"], *(counted[column] for column in _COLUMNS), counted["harmless"], counted["not explained"]]
    return f"| {name} | " + " | ".join(map(str, cells)) + f" | {killed / counted['all']:.1%} |"
