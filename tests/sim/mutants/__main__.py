"""``make mutants``: every statement of every script deleted or bent, one at a time, and what finds it.

Ends with 1 if a mutant survives without a reason in ``survivors.toml``, or a reason there is out of date. Results are
kept in ``.mutants``, so what was stopped goes on. With ``--operations`` it is a sample of the mutants of the operations
in Python.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from tests.sim.branches.reached import reasons
from tests.sim.branches.scripts import sources
from tests.sim.mutants.differing import difference
from tests.sim.mutants.lua import scripts_mutants
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.pool import Pool
from tests.sim.mutants.python import sampled
from tests.sim.mutants.report import SURVIVORS, printed
from tests.sim.mutants.subjects import OPERATIONS, SCRIPTS

SEED = 1
"""Of the samples."""

SAMPLE = {SCRIPTS: 200, OPERATIONS: 100}
"""Mutants of the fixed sample, on which `make test` is measured."""

EXPLAINING_RUNS = 2000


def main() -> int:
    options = _parser().parse_args()
    if options.sample:
        print(compared(options.results, options.jobs))
        return 0
    if unknown := set(options.script) - sources().keys():
        _parser().error(f"no script is called {', '.join(sorted(unknown))}; there are {', '.join(sources())}")
    mutants = chosen(options)
    if not mutants:
        _parser().error("there is no such mutant; --list lists them")
    if options.list:
        print("\n".join(mutant.where for mutant in mutants))
        return 0
    if options.explain:
        for mutant in mutants:
            told = difference(mutant, EXPLAINING_RUNS) or f"no difference in {EXPLAINING_RUNS:,} runs of sampled calls"
            print(f"{mutant.where}\n{mutant.name}\n{told}\n", flush=True)
        return 0
    subject = OPERATIONS if options.operations else SCRIPTS
    pool = Pool(subject, options.results, options.jobs, options.until)
    results = pool.judged(mutants, again=options.again)
    return printed(mutants, results, whole=not options.only)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--script", action="append", default=[], help="claim, common/guard, …; can be repeated")
    parser.add_argument("--operations", type=int, metavar="COUNT", help="of the operations in Python, so many")
    parser.add_argument(
        "--sample", action="store_true", help="a fixed sample: what `make test` finds of it, and what all do"
    )
    parser.add_argument(
        *("--only", "--mutant"),
        action="append",
        default=[],
        metavar="MUTANT",
        help="as it is listed: claim:45:12, or with what follows; can be repeated",
    )
    parser.add_argument("--until", default="", metavar="STAGE", help="the last stage: tests, quick, rest or minute")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    parser.add_argument("--again", choices=("all", "survivors"), default="", help="forget earlier results of these")
    parser.add_argument("--list", action="store_true", help="list the mutants, and do nothing else")
    parser.add_argument("--explain", action="store_true", help="show the fewest calls that these answer in another way")
    parser.add_argument(
        "--results", type=Path, default=Path(".mutants"), help="where results are kept (default: %(default)s)"
    )
    return parser


def chosen(options: argparse.Namespace) -> list[Mutant]:
    every = sampled(options.operations, SEED) if options.operations else []
    if not every:
        files = scripts_mutants().items()
        every = [each for file, some in files if file in (options.script or [file]) for each in some]
    if not options.only:
        return every
    return [each for each in every if any(f"{each.where} ".startswith(f"{one} ") for one in options.only)]


def compared(folder: Path, jobs: int) -> str:
    """Tries the fixed sample with the tests of `make test`, and what is left with everything. Returns a table."""
    rows = ["| mutants of | tried | harmless | killed by `make test` | killed by all | survive |", "| --- " * 6 + "|"]
    harmless = reasons(SURVIVORS, "mutants")
    for subject, count in SAMPLE.items():
        every = [mutant for some in scripts_mutants().values() for mutant in some]
        sample = random.Random(SEED).sample(every, count) if subject is SCRIPTS else sampled(count, SEED)
        mutants = [mutant for mutant in sample if mutant.name not in harmless]
        found = Pool(subject.at_each_change, folder, jobs).judged(mutants)
        left = [mutant for mutant in mutants if not found[mutant.name].is_killed]
        late = Pool(subject, folder, jobs).judged(left)
        survive = [mutant.where for mutant in left if not late[mutant.name].is_killed]
        counts = len(sample), len(sample) - len(mutants), len(mutants) - len(left), len(mutants) - len(survive)
        rows.append(f"| {subject.name} | {' | '.join(map(str, counts))} | {', '.join(survive) or 'none'} |")
    return "\n".join(rows)


if __name__ == "__main__":
    sys.exit(main())
