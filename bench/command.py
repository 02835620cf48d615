"""``python -m bench`` runs the suites, shows progress, and prints the figures and what they were measured on."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from bench import machine, table
from bench.arguments import add_json, add_server, command_parser
from bench.cores import Cores
from bench.stand import Scale, Suite, standing
from bench.suites import SUITES
from bench.table import Progress, Result

_EXAMPLE = """\
example:
  python -m bench
  python -m bench --only lateness --only push --json figures.json
  python -m bench --only push --json figures.json --merge
  python -m bench --server redis7
single functions:
  python -m pytest bench --benchmark-only
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 2 not understood or not possible, 130 interrupted."""
    options = _parser().parse_args(arguments)
    if options.list:
        for suite in SUITES:
            print(f"{suite.name:<10} {suite.about}")
        return 0
    cores = Cores.divided()
    cores.pin_clients()
    facts = machine.told(options.server, topology="one server on loopback TCP", cores=cores)
    chosen = [suite for suite in SUITES if not options.only or suite.name in options.only]
    results: list[Result] = []
    complete = False
    try:
        for result in _run(chosen, options, cores):
            results.append(result)
        complete = True
    finally:
        # figures that were found before a failure are shown too
        if results:
            table.show(results, facts)
        if options.json is not None:
            table.save(options.json, results, facts, complete=complete, merge=options.merge)
    return 0


def _run(chosen: Sequence[Suite], options: argparse.Namespace, cores: Cores) -> Iterator[Result]:
    with Progress() as progress:
        for position, suite in enumerate(chosen, 1):
            progress.enter(suite.name, position, len(chosen))
            scale: Scale = "quick" if options.quick else "big" if options.big else "usual"
            with standing(options.server, cores=cores, scale=scale, say=progress.say) as stand:
                for figure in suite.measure(stand):
                    progress.found(figure)
                    yield Result(suite.name, figure)


def _parser() -> argparse.ArgumentParser:
    about = "Measures how fast and how late the engine is, on its own servers on this machine, in under ten minutes."
    parser = command_parser("bench", about, _EXAMPLE)
    add_server(parser)
    parser.add_argument(
        "--only",
        action="append",
        choices=[suite.name for suite in SUITES],
        metavar="NAME",
        help="only this suite; may be repeated",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="use small sizes: everything runs, little is measured")
    about = "use a million tasks where that makes a difference, and a hundred million in the far store: 26 GB of disk"
    size.add_argument("--big", action="store_true", help=about)
    add_json(parser, "write the figures there too")
    parser.add_argument("--merge", action="store_true", help="keep the figures of other suites in that file")
    parser.add_argument("--list", action="store_true", help="show the suites, and do nothing")
    return parser
