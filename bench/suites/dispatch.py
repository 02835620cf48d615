"""The due tasks a second that become ready, and that reach somebody's list, with the default pollers.

The same scripts driven by a C client take turns with both. The textbook's loop shows why there are batches.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench import limit
from bench.figures import Figure, Spent, client_cost, server_cost
from bench.loads import burst
from bench.stand import SHARDS, Stand, Suite
from shardq.core.calls.dispatch import MAX_BATCH
from shardq.core.calls.request import Command
from shardq.core.layout.slots import slot_of

PUSHED_PER_S = 100_000
"""The rate of pushing before the instant."""

TOPIC = "mail"
LIST = "bench-mail"


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(5_000, 200_000)
    ids, most = limit.in_turns(
        stand, "dispatch", count, lambda: made_ready(stand, count), lambda: limit.dispatch_rate(stand, count)
    )
    name = f"dispatch of {count:,}, {SHARDS} shards"
    yield limit.beside(name, count, ids, most, f"{MAX_BATCH} a call, 1 shard", aim="≥ 0.8")
    yield client_cost(name, count, ids)
    yield server_cost(name, count, ids)

    payloads, alone = limit.in_turns(
        stand, "forward", count, lambda: forwarded(stand, count), lambda: limit.forward_rate(stand, count)
    )
    # the C client does one thing at a time, so the times of both for a task add up
    both = 1 / (1 / most + 1 / alone) if most and alone else None
    name = f"dispatch and forward of {count:,} payloads to a list"
    yield limit.beside(name, count, payloads, both, "both scripts in turn, 1 shard", aim="≥ 0.8")
    yield client_cost(name, count, payloads)
    yield server_cost(name, count, payloads)

    few = stand.pick(500, 10_000)
    stand.say(f"one at a time, {few:,} tasks")
    literal = limit.literal_rate(stand, few)
    reference = f"{literal * ids.wall_s / count:.3f} of the above; ZRANGEBYSCORE LIMIT 0 1, ZREM, RPUSH by redis-py"
    yield Figure("dispatch, the textbook's way", literal, "tasks/s", reference=reference)
    if limit.program():
        single = limit.dispatch_rate(stand, few, limit=1)
        reference = f"our script, 1 a call; {limit.CONNECTIONS} connections"
        yield Figure("dispatch one at a time, by the C client", single, "tasks/s", reference=reference)


SUITE = Suite("dispatch", "due tasks made ready, and forwarded, beside what the server can do", _measure)


def made_ready(stand: Stand, count: int) -> Spent:
    with stand.engine() as engine:
        engine.start()
        return burst(stand, engine, count, per_s=PUSHED_PER_S)


def forwarded(stand: Stand, count: int) -> Spent:
    with stand.engine() as engine:
        engine.forward(TOPIC, to=LIST)
        engine.start()

        def arrived() -> float:
            length = Command(slot_of(LIST), ("LLEN", LIST), int)
            return stand.until(lambda: stand.driver.call(length) >= count, f"{count:,} payloads are in {LIST}")

        return burst(stand, engine, count, topic=TOPIC, per_s=PUSHED_PER_S, over=arrived)
