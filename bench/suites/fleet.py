"""The growth of a fleet: the same backlog drained by 1, 20 and 200 consumers.

Consumers are threads, at most fifty to a process, each with claims and acknowledgements of its own. The measurement is
from four tenths of the backlog to nine: at the beginning a fleet connects, at the end it contends for the last tasks.
Where one core runs all clients, the rate is the limit of that core, and many processes share it worse than one. The
*server's* CPU for each task shows the cost of a larger fleet: it bounds the total where clients have machines of their
own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from bench.children import Child
from bench.draining import CLAIM
from bench.figures import Figure
from bench.loads import fill_ready
from bench.stand import Stand, Suite

SIZES = (1, 20, 200)
PER_PROCESS = 50


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(5_000, 400_000, 1_000_000)
    drains = {}
    for consumers in SIZES:
        stand.say(f"{count:,} tasks drained by {consumers} consumers")
        drains[consumers] = drained(stand, count, consumers)
    best = max(drain.rate for drain in drains.values())
    cheapest = min(drain.server_us for drain in drains.values())
    for consumers, drain in drains.items():
        ratio = drain.rate / best
        processes = -(-consumers // PER_PROCESS)
        yield Figure(
            f"drained by {consumers} consumers, claim({CLAIM})",
            drain.rate,
            "tasks/s",
            reference=f"{ratio:.2f} of the best; processes: {processes}, scripts per 1,000 tasks: "
            f"{drain.scripts:.0f}; aim: ≥ 0.9",
            ratio=ratio,
        )
        share = cheapest / drain.server_us
        yield Figure(
            f"drained by {consumers} consumers: server CPU",
            drain.server_us,
            "µs/task",
            reference=f"a server can do {share:.2f} of the best; aim: ≥ 0.9",
            ratio=share,
        )


SUITE = Suite("fleet", "a backlog drained by 1, 20 and 200 consumers", _measure)


@dataclass(frozen=True, slots=True)
class Drain:
    rate: float
    scripts: float
    """The claims and settles that the servers ran for a thousand tasks."""
    server_us: float
    """The CPU of the servers for a task."""


def drained(stand: Stand, count: int, consumers: int) -> Drain:
    with stand.engine() as engine, contextlib.ExitStack() as stack:
        fill_ready(stand, engine, count)
        processors = [
            stack.enter_context(Child("bench.draining", stand.url, engine.name, str(part)))
            for part in _parts(consumers)
        ]
        for processor in processors:
            processor.await_ready()
        for processor in processors:
            processor.begin()
        before = stand.until_left(engine, count * 6 // 10)
        stand.reset_stats()
        with stand.metering() as spent:
            done = before - stand.until_left(engine, count // 10)
        scripts = stand.commands()["evalsha"]
        stand.until_gone(engine, lambda keys: keys.task)
        taken = sum(processor.end() for processor in processors)
        if taken != count:
            raise RuntimeError(f"{consumers} consumers say they took {taken:,} of {count:,} tasks")
        return Drain(done / spent.wall_s, scripts * 1000 / done, spent.server_s / done * 1e6)


def _parts(consumers: int) -> list[int]:
    """Divides consumers over processes, as equally as possible."""
    processes = -(-consumers // PER_PROCESS)
    return [(consumers + number) // processes for number in range(processes)]
