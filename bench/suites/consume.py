"""Ready tasks are taken by one consumer that claims and acknowledges, as it is by default and with ``prefetch=True``,
and by a worker whose handlers do nothing.

They take a backlog, in a process without pollers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bench import limit
from bench.consuming import CLAIM, claim_ahead_and_ack, claim_and_ack, coroutine, function, running
from bench.figures import Figure, Spent, client_cost, rate, server_cost
from bench.loads import fill_ready
from bench.stand import Stand, Suite
from shardq import Engine


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(5_000, 100_000)
    beside = limit.MISSING
    if limit.program():
        most = limit.claim_rate(stand, count, claim=CLAIM)
        beside = f"one consumer; the C client claims {most:,.0f}/s, and can't settle"
    for name, take in (
        (f"claim({CLAIM}) and ack", claim_and_ack),
        (f"claim({CLAIM}) and ack, prefetch=True", claim_ahead_and_ack),
    ):
        stand.say(f"{name}, {count:,} tasks")
        spent = drained(stand, count, take)
        yield rate(name, count, spent, reference=beside)
        yield client_cost(name, count, spent)
        yield server_cost(name, count, spent)
    for kind, register in (("functions", function), ("coroutines", coroutine)):
        name = f"worker, no-op {kind}"
        stand.say(f"{name}, {count:,} tasks")
        spent = drained(stand, count, running(stand, register))
        yield rate(name, count, spent, reference="one process; aim: ≥ 30,000")
        yield client_cost(name, count, spent)
        yield server_cost(name, count, spent)


SUITE = Suite("consume", "claim and ack, and a worker with nothing to do, from a backlog", _measure)


def drained(stand: Stand, count: int, drain: Callable[[Engine, int], None]) -> Spent:
    with stand.engine() as engine:
        fill_ready(stand, engine, count)
        with stand.metering() as spent:
            drain(engine, count)
    return spent
