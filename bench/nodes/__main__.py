"""``python -m bench.nodes`` measures, models, shows progress, and prints the figures and what they were taken on."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from bench import machine
from bench.arguments import add_json, add_server, command_parser
from bench.cores import Cores
from bench.nodes.costs import MASTERS, measured
from bench.nodes.expand import expand
from bench.nodes.failover import failover
from bench.nodes.model import modelled
from bench.nodes.show import Findings, save, show
from bench.table import Progress
from cluster import entry, servers

_ABOUT = """\
Measures the cost of a task on clusters of several sizes, and the lateness of tasks while a cluster changes. It starts
its own servers on this machine, and takes some three minutes.
"""

_EXAMPLE = """\
example:
  python -m bench.nodes --json bench/report/nodes.json
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 2 not understood or not possible, 130 interrupted."""
    parser = command_parser("bench.nodes", _ABOUT, _EXAMPLE)
    add_server(parser)
    add_json(parser, "write the findings there too, if all parts are complete")
    options = parser.parse_args(arguments)
    binary = servers.binary(options.server)
    # the engine reports servers that are killed on purpose, which is no news
    logging.getLogger("shardq").setLevel(logging.CRITICAL)
    cores = Cores.divided(cluster=True)
    cores.pin_clients()
    topology = f"clusters of {', '.join(map(str, MASTERS))} masters (failover: 3 masters, 1 replica each)"
    found = Findings(machine.told(options.server, topology=topology, cores=cores))
    try:
        with Progress() as progress:
            progress.enter("costs", 1, 3)
            found.measured = measured(binary, cores=cores, say=progress.say)
            found.model = modelled(found.measured)
            progress.enter("failover", 2, 3)
            found.failover = failover(binary, cores=cores, say=progress.say)
            progress.enter("expand", 3, 3)
            found.expand = expand(binary, cores=cores, say=progress.say)
    finally:
        # findings before a failure are shown too
        show(found)
    if options.json is not None:
        save(options.json, found)
    return 0


if __name__ == "__main__":
    sys.exit(entry.run(main))
