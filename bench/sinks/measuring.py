"""One measurement: a backlog of ready tasks, and one relay process that hands it to a sink."""

from __future__ import annotations

from collections.abc import Iterator

from bench.children import Child
from bench.figures import Figure
from bench.loads import PAYLOAD
from bench.sinks.destinations import Destination
from bench.stand import Stand
from shardq import Task

TOPIC = "orders"


def measured(stand: Stand, destination: Destination, count: int) -> Iterator[Figure]:
    """Yields the rate, and the CPU of a task in each process. Raises if a task has not arrived."""
    with stand.engine() as engine, destination:
        stand.say(f"{count:,} tasks to {destination.name}")
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
            raise RuntimeError(f"{destination.name}: {arrived:,} of {count:,} tasks have arrived")
    cpu = {"relay": relay_s, "engine's server": spent.server_s, "sink": sink_s}
    yield Figure(
        destination.name,
        count / spent.wall_s,
        "tasks/s",
        reference="CPU a task: " + ", ".join(f"{who} {cpu_s / count * 1e6:.1f} µs" for who, cpu_s in cpu.items()),
        at={who: cpu_s / count * 1e6 for who, cpu_s in cpu.items()},
    )
