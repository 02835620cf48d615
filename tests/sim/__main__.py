"""The simulator. Without a command: as much of everything as the time allows. Ends with 1 at the first fault, and tells
its story; when branches are counted, at its end.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable

from cluster.servers import DEFAULT, KINDS, found
from tests.sim import parallel
from tests.sim.branches.reached import Reached, summary, wrong
from tests.sim.conformance.many import compared
from tests.sim.runs import many as runs
from tests.sim.runs.plan import CHOSEN
from tests.sim.search import many as search
from tests.sim.search.many import GROUPS

SHARE_OF_RUNS, SHARE_OF_SEARCH = 0.6, 0.2
"""Of the time, without a command; the rest is for the comparison with servers."""

NIGHT_S = 3600.0
"""In so long every branch must be reached, of scripts and of recovery; counting them takes a sixth of the speed."""

EXAMPLES = """\
examples:
  python -m tests.sim --minutes 5
  python -m tests.sim runs --seed 4711 --hours 2
  python -m tests.sim runs --story 4711            what happened in that run
  python -m tests.sim runs --faults tail snapshot  servers that forget
  python -m tests.sim runs --faults fleets         workers that come and go
  python -m tests.sim search --group two changes   these groups, whole
  python -m tests.sim search --every 12 --part 3   a twelfth of all: the fourth
  python -m tests.sim search --number two 1234     one search
  python -m tests.sim compare --calls 100000 --server all
"""


def main() -> int:
    options = _parser().parse_args()
    try:
        return 0 if options.run(options) else 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    timed, together, first, beside = (argparse.ArgumentParser(add_help=False) for _ in range(4))
    timed.add_argument("--minutes", type=float, default=1.0, help="how long (default: %(default)s)")
    timed.add_argument("--hours", type=float, help="how long")
    first.add_argument("--seed", type=int, default=1, help="the number of the first run (default: %(default)s)")
    together.add_argument("--jobs", type=int, default=parallel.cores(), help="processes (default: %(default)s)")
    beside.add_argument(
        "--server", default=DEFAULT, choices=(*KINDS, "all"), help="the kind to compare with (default: %(default)s)"
    )
    parser = argparse.ArgumentParser(
        prog="python -m tests.sim",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
        parents=[timed, first, together, beside],
    )
    parser.add_argument(
        "--branches", action="store_true", help="fail when a branch was not reached, also in less than an hour"
    )
    parser.set_defaults(run=everything)
    commands = parser.add_subparsers(metavar="command")

    some = commands.add_parser("runs", parents=[timed, first, together], help="simulated runs of whole engines")
    some.add_argument("--story", type=int, metavar="SEED", help="tell all that happens in one run")
    some.add_argument(
        "--faults",
        nargs="+",
        choices=CHOSEN,
        default=[],
        help="runs of servers that forget, of fleets, of an address that leads elsewhere",
    )
    some.set_defaults(run=simulated)

    some = commands.add_parser("search", parents=[together], help="all interleavings of operations on one id")
    some.add_argument("--group", nargs="+", choices=GROUPS, default=list(GROUPS), help="which (default: all)")
    some.add_argument("--every", type=int, default=1, metavar="N", help="only one search in N")
    some.add_argument("--part", type=int, default=0, metavar="K", help="of these N parts another one: 0 to N - 1")
    some.add_argument("--number", nargs=2, metavar=("GROUP", "NUMBER"), help="only this one")
    some.set_defaults(run=searched)

    some = commands.add_parser(
        "compare", parents=[timed, first, beside], help="the model of a server, beside real servers"
    )
    some.add_argument("--calls", type=int, help="until it were so many on each server, however long that takes")
    some.set_defaults(run=compared_with_all)
    return parser


def _seconds(options: argparse.Namespace) -> float:
    return float(options.hours * 3600 if options.hours else options.minutes * 60)


def everything(options: argparse.Namespace) -> bool:
    seconds = _seconds(options)
    branches = Reached() if seconds >= NIGHT_S or options.branches else None
    places = search.places(list(GROUPS))
    random.Random(options.seed).shuffle(places)  # some of every group, however far it goes
    parts: list[Callable[[], bool]] = [
        lambda: _simulated(options, seconds * SHARE_OF_RUNS, branches),
        lambda: _searched(options, places, seconds * SHARE_OF_SEARCH, branches),
        lambda: _compared(options, seconds * (1 - SHARE_OF_RUNS - SHARE_OF_SEARCH), None, branches),
    ]
    if branches is None:
        return all(part() for part in parts)
    are_well = [part() for part in parts]  # to the end: a fault must not hide the branches that nothing reaches
    return all([*are_well, _all_reached(branches)])


def _all_reached(branches: Reached) -> bool:
    told = wrong(branches)
    print(f"reached: {summary(branches)}", *told, sep="\n", flush=True)
    return not told


def simulated(options: argparse.Namespace) -> bool:
    if options.story is not None:
        print(runs.explained(options.story, seconds=0, everything=True, kinds=options.faults))
        return True
    return _simulated(options, _seconds(options))


def _simulated(options: argparse.Namespace, seconds: float, branches: Reached | None = None) -> bool:
    """``branches``: what is reached is counted, and added to it."""
    kinds = getattr(options, "faults", [])
    tally = runs.carried_out(
        options.seed, seconds=seconds, jobs=options.jobs, counted=branches is not None, kinds=kinds
    )
    if branches is not None:
        branches += tally.branches
    print(f"simulated: {tally}", flush=True)
    for seed in tally.failed[:1]:
        print(f"run {seed} shows a fault; its story, cut down for a minute:", flush=True)
        print(runs.explained(seed, kinds=kinds))
    if tally.failed[1:]:
        print(f"so do runs {', '.join(map(str, tally.failed[1:]))}", flush=True)
    return not tally.failed


def searched(options: argparse.Namespace) -> bool:
    if options.number is not None:
        group, number = options.number
        return _searched(options, [search.Place(group, int(number))], None)
    return _searched(options, search.places(options.group, every=options.every, first=options.part), None)


def _searched(
    options: argparse.Namespace, places: list[search.Place], seconds: float | None, branches: Reached | None = None
) -> bool:
    tally = search.carried_out(places, jobs=options.jobs, seconds=seconds, counted=branches is not None)
    if branches is not None:
        branches += tally.branches
    print(f"searched: {tally}", flush=True)
    print(*tally.violations, sep="\n", end="\n" if tally.violations else "")
    return not tally.violations


def compared_with_all(options: argparse.Namespace) -> bool:
    return _compared(options, _seconds(options), options.calls)


def _compared(options: argparse.Namespace, seconds: float, calls: int | None, branches: Reached | None = None) -> bool:
    kinds = list(found()) if options.server == "all" else [options.server]
    for kind in sorted(set(KINDS) - set(found())) if options.server == "all" else ():
        print(f"{kind}: not found on this machine")
    limit = None if calls else seconds / len(kinds)
    same = [compared(kind, options.seed, seconds=limit, calls=calls, branches=branches) for kind in kinds]
    return all(same)


if __name__ == "__main__":
    sys.exit(main())
