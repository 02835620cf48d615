"""``python -m bench.sinks``: the command."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence

from bench import machine, table
from bench.arguments import add_json, add_server, command_parser
from bench.children import Child
from bench.cores import Cores
from bench.figures import Figure, lateness, rate
from bench.loads import PAYLOAD
from bench.sinks.destinations import KINDS, Destination, Kind
from bench.stand import Stand, standing
from bench.table import Progress, Result
from cluster import entry, servers
from cluster.rabbitmq import program
from cluster.server import ServerFailed
from shardq import Engine, Task

TASKS = 200_000
TOPIC = "orders"
TIMED, TIMED_RATE = 3_000, 500
"""The tasks that fall due one by one, and how many in a second: few enough that none waits for another."""
TIMED_AHEAD_S = 2.0
"""The first falls due so long after its push."""

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
    named = [kind for kind in KINDS if options.only.lower() in kind.name.lower()]
    chosen = [kind for kind in named if options.brokers or not kind.is_broker]
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
                    for figure in _measured(stand, destination, kind, count):
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


def _measured(stand: Stand, destination: Destination, kind: Kind, count: int) -> Iterator[Figure]:
    """The rate, and the CPU of a task in each process; and how late tasks come there, if it tells that. Raises if a
    task has not arrived.
    """
    timed = min(TIMED, count) if kind.is_timed else 0
    with stand.engine() as engine:
        stand.say(f"{count:,} tasks to {kind.name}")
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
        if timed:
            with Child("bench.sinks.relaying", stand.url, engine.name) as child:
                child.await_ready()
                child.begin()
                _push_timed(engine, timed)
                stand.until_gone(engine, lambda keys: keys.task)
                child.end()
        engine.forward(TOPIC, to=None)
        arrived = destination.arrived()
        if arrived.tasks != count + timed:
            raise RuntimeError(f"{kind.name}: {arrived.tasks:,} of {count + timed:,} tasks have arrived")
    cpu = {"relay": relay_s, "engine's server": spent.server_s, "sink": sink_s}
    told = ", ".join(f"{who} {cpu_s / count * 1e6:.1f} µs" for who, cpu_s in cpu.items())
    yield rate(kind.name, count, spent, reference=f"CPU a task: {told}")
    if timed:
        yield lateness(f"{kind.name}: from due to there", arrived.late_ms, expected=timed, aim=f"{TIMED_RATE} tasks/s")


def _push_timed(engine: Engine, count: int) -> None:
    first = time.time() + TIMED_AHEAD_S
    dues = [first + n / TIMED_RATE for n in range(count)]
    engine.push_many([Task({"due": due, "text": PAYLOAD}, topic=TOPIC, at=due) for due in dues])


if __name__ == "__main__":
    sys.exit(entry.run(main))
