"""``python -m bench.nodes`` measures, models, shows progress, and prints the figures and what they were taken on."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import machine
from bench.arguments import add_json, add_server, command_parser
from bench.cores import Cores
from bench.nodes.costs import measured
from bench.nodes.expand import expand
from bench.nodes.failover import failover
from bench.nodes.model import modelled
from bench.nodes.show import Findings, save, show
from bench.stand import Scale
from bench.table import Progress
from cluster import servers

PARTS = {
    "costs": "CPU of a task, rates and balance on clusters of several sizes; and the model",
    "failover": "a master is killed while tasks flow",
    "expand": "the number of shards trebles while tasks flow",
}

_ABOUT = """\
Measures the cost of a task on clusters of several sizes, and the lateness of tasks while a cluster changes. It starts
its own servers on this machine, and takes some three minutes.
"""

_EXAMPLE = """\
example:
  python -m bench.nodes --quick
  python -m bench.nodes --only costs --masters 1,2,4,8
  python -m bench.nodes --json bench/report/nodes.json
"""

_MOST_MASTERS = 64
"""A machine runs out of memory beyond this; the model does not."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 not possible, 2 not understood, 130 interrupted."""
    options = _parser().parse_args(arguments)
    try:
        binary = servers.binary(options.server)
    except servers.NoSuchServer as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    # the engine reports servers that are killed on purpose, which is no news
    logging.getLogger("shardq").setLevel(logging.CRITICAL)
    cores = Cores.divided(cluster=True)
    cores.pin_clients()
    sizes = ", ".join(map(str, options.masters))
    topology = f"clusters of {sizes} masters, {options.replicas} replicas each (failover: 3 masters, 1 replica each)"
    found = Findings(machine.told(options.server, topology=topology, cores=cores))
    parts = [part for part in PARTS if not options.only or part in options.only]
    complete = False
    try:
        with Progress() as progress:
            for position, part in enumerate(parts, 1):
                progress.enter(part, position, len(parts))
                _measure(part, binary, options, cores, found, progress.say)
        complete = True
    except KeyboardInterrupt:
        print("interrupted; the servers are stopped", file=sys.stderr)
    finally:
        # findings before a failure are shown too
        show(found)
    if complete and options.json is not None:
        save(options.json, found)
    return 0 if complete else 130


def _measure(
    part: str, binary: Path, options: argparse.Namespace, cores: Cores, found: Findings, say: Callable[[str], None]
) -> None:
    scale: Scale = "quick" if options.quick else "usual"
    if part == "costs":
        found.measured = measured(
            binary, masters=options.masters, replicas=options.replicas, cores=cores, scale=scale, say=say
        )
        found.model = modelled(found.measured)
    elif part == "failover":
        found.failover = failover(binary, cores=cores, scale=scale, say=say)
    else:
        found.expand = expand(binary, replicas=options.replicas, cores=cores, scale=scale, say=say)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("bench.nodes", _ABOUT, _EXAMPLE)
    parser.add_argument("--masters", type=_counts, default="1,3,6", help="sizes of cluster (default: %(default)s)")
    parser.add_argument("--replicas", type=int, choices=range(4), default=0, help="replicas of each (default: 0)")
    add_server(parser)
    parser.add_argument(
        "--only",
        action="append",
        choices=list(PARTS),
        metavar="PART",
        help="only this part; may be repeated. " + "; ".join(f"{part}: {about}" for part, about in PARTS.items()),
    )
    parser.add_argument("--quick", action="store_true", help="use small sizes: everything runs, little is measured")
    add_json(parser, "write the findings there too, if all parts are complete")
    return parser


def _counts(text: str) -> list[int]:
    counts = text.split(",")
    if not all(count.isdecimal() and 1 <= int(count) <= _MOST_MASTERS for count in counts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of sizes; give numbers from 1 to {_MOST_MASTERS} with commas between, as in 1,3,6"
        )
    return sorted({int(count) for count in counts})


if __name__ == "__main__":
    sys.exit(main())
