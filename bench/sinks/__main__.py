"""``python -m bench.sinks``: the command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench import machine, table
from bench.arguments import add_json, add_server, command_parser
from bench.children import Child
from bench.cores import Cores
from bench.figures import Figure, rate
from bench.loads import PAYLOAD
from bench.sinks.destinations import KINDS, Destination
from bench.stand import Stand, standing
from bench.table import Progress, Result
from cluster import entry, servers
from cluster.rabbitmq import program
from cluster.server import ServerFailed
from shardq import Task

TASKS = 200_000
TOPIC = "orders"

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
    chosen = [kind for kind in KINDS if options.only in kind.name and (options.brokers or not kind.is_broker)]
    if not chosen:
        names = ", ".join(repr(kind.name) for kind in KINDS)
        parser.error(f"--only {options.only!r} leaves no sink; there are {names}; those of RabbitMQ need --brokers")
    binary = servers.binary(options.server)
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
                count = max(1, int(options.tasks * kind.share))
                with (
                    standing(options.server, cores=shared, scale="usual", say=progress.say) as stand,
                    kind.start(binary) as destination,
                ):
                    figure = _measured(stand, destination, kind.name, count)
                progress.found(figure)
                results.append(Result("sinks", figure))
        complete = True
    finally:
        # figures that were found before a failure are shown too
        if results:
            table.show(results, facts)
        if options.json is not None:
            table.save(options.json, results, facts, complete=complete)
    return 0


def _measured(stand: Stand, destination: Destination, name: str, count: int) -> Figure:
    """The rate, and the CPU of a task in each process. Raises if a task has not arrived."""
    with stand.engine() as engine:
        stand.say(f"{count:,} tasks to {name}")
        engine.pause(TOPIC)
        engine.forward(TOPIC, to=destination.url)
        engine.push_many([Task({"n": n, "text": PAYLOAD}, topic=TOPIC) for n in range(count)])
        with Child("bench.sinks.relaying", stand.url, engine.name) as child:
            child.await_ready()
            stand.until_gone(engine, lambda keys: keys.due)
            child.begin()
            sink_s = destination.cpu_s()
            with stand.metering() as spent:
                engine.resume(TOPIC)
                # the record of a task goes when it is acknowledged
                stand.until_gone(engine, lambda keys: keys.task)
            sink_s = destination.cpu_s() - sink_s
            relay_s = float(child.end())
        engine.forward(TOPIC, to=None)
        arrived = destination.arrived()
        if arrived != count:
            raise RuntimeError(f"{name}: {arrived:,} of {count:,} tasks have arrived")
    cpu = {"relay": relay_s, "engine's server": spent.server_s, "sink": sink_s}
    told = ", ".join(f"{who} {cpu_s / count * 1e6:.1f} µs" for who, cpu_s in cpu.items())
    return rate(name, count, spent, reference=f"CPU a task: {told}")


if __name__ == "__main__":
    sys.exit(entry.run(main))
