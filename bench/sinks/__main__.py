"""``python -m bench.sinks``: the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import machine, table
from bench.arguments import add_json, add_server, command_parser
from bench.cores import Cores
from bench.figures import Figure
from bench.sinks.destinations import DESTINATIONS, Destination, List
from bench.sinks.measuring import measured
from bench.stand import standing
from bench.table import Progress, Result
from cluster import entry, servers
from cluster.rabbitmq import program
from cluster.server import ServerFailed

TASKS = 200_000

_ABOUT = """\
Measures how many tasks a second one relay process hands to a sink, and counts them there. Servers, sinks and the relay
share all cores.
"""

_EXAMPLE = """\
example:
  python -m bench.sinks
  python -m bench.sinks --brokers --only quorum
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 not possible, 2 not understood, 130 interrupted."""
    parser = command_parser("bench.sinks", _ABOUT, _EXAMPLE)
    parser.add_argument("--brokers", action="store_true", help="also RabbitMQ, which is not installed by us")
    parser.add_argument("--only", metavar="TEXT", default="", help="only sinks with this in their names")
    parser.add_argument("--tasks", type=int, default=TASKS, help="for the fast ones; default: %(default)s")
    add_server(parser)
    add_json(parser, "write the figures there too")
    options = parser.parse_args(arguments)
    chosen = [each for each in DESTINATIONS if options.only in each.name and (options.brokers or not each.needs)]
    if not chosen:
        names = ", ".join(repr(each.name) for each in DESTINATIONS)
        parser.error(f"--only {options.only!r} leaves no sink; there are {names}; those of RabbitMQ need --brokers")
    List.binary = servers.binary(options.server)
    try:
        if options.brokers:
            program("rabbitmq-server")
    except ServerFailed as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    shared = Cores(frozenset(), frozenset())
    facts = machine.told(options.server, topology="one server on loopback TCP, one relay process", cores=shared)
    results: list[Result] = []
    complete = False
    try:
        with Progress() as progress:
            for position, kind in enumerate(chosen, 1):
                progress.enter("sinks", position, len(chosen))
                results += [
                    Result("sinks", figure) for figure in _figures(kind, options.server, options.tasks, progress)
                ]
        complete = True
    finally:
        # figures that were found before a failure are shown too
        if results:
            table.show(results, facts)
        if options.json is not None:
            table.save(options.json, results, facts, complete=complete)
    return 0


def _figures(kind: type[Destination], server: str, tasks: int, progress: Progress) -> list[Figure]:
    shared = Cores(frozenset(), frozenset())
    with standing(server, cores=shared, scale="usual", say=progress.say) as stand:
        found = list(measured(stand, kind(), max(1, int(tasks * kind.share))))
    for figure in found:
        progress.found(figure)
    return found


if __name__ == "__main__":
    sys.exit(entry.run(main))
