"""``make mutants``: every statement of every script deleted or bent, one at a time, and what finds it.

Ends with 1 if a mutant survives without a reason in ``survivors.toml``, or a reason there is out of date. Results are
kept in ``.mutants``, so what was stopped goes on; ``--again`` begins anew.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tests.sim.branches.scripts import sources
from tests.sim.mutants.killing import STAGES
from tests.sim.mutants.lua import scripts_mutants
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.pool import Pool
from tests.sim.mutants.report import printed

HELP_ONLY = "a mutant, as it is listed: claim:45:12, or claim:45:12 with what follows; can be repeated"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--script", action="append", default=[], help="claim, common/guard, …; can be repeated")
    parser.add_argument("--only", action="append", default=[], metavar="MUTANT", help=HELP_ONLY)
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="the last stage (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    parser.add_argument("--again", choices=("all", "survivors"), default="", help="forget earlier results of these")
    parser.add_argument("--list", action="store_true", help="list the mutants, and do nothing")
    parser.add_argument(
        "--results", type=Path, default=Path(".mutants"), help="where results are kept (default: %(default)s)"
    )
    options = parser.parse_args()
    unknown = set(options.script) - sources().keys()
    if unknown:
        parser.error(f"no script is called {', '.join(sorted(unknown))}; there are {', '.join(sources())}")
    mutants = chosen(options.script, options.only)
    if not mutants:
        parser.error("there is no such mutant; --list lists them")
    if options.list:
        print("\n".join(mutant.where for mutant in mutants))
        return 0
    pool = Pool(options.results, options.jobs, STAGES[: STAGES.index(options.until) + 1])
    results = pool.judged(mutants, again=options.again)
    return printed(mutants, results, whole=not options.only)


def chosen(scripts: list[str], only: list[str]) -> list[Mutant]:
    every = [mutant for file, some in scripts_mutants().items() if not scripts or file in scripts for mutant in some]
    if not only:
        return every
    return [
        mutant for mutant in every if any(mutant.where == one or mutant.where.startswith(f"{one} ") for one in only)
    ]


if __name__ == "__main__":
    sys.exit(main())
