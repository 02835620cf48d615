"""The server's cost of a task while very many are pending: pushed, and dispatched, at random due times.

The scripts are those of the engine. Dispatch is told an instant in the future, so that tasks whose due times are spread
over an hour fall due at the rate of the measurement. As many are moved as are pushed, so that the backlog stays as it
is. A round is spread over all shards: with more of them a call carries fewer tasks.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

from bench.figures import Figure, Spent, server_cost
from bench.loads import PAYLOAD, SPREAD_S
from bench.stand import Stand, Suite
from shardq import Engine, Task
from shardq.core.calls import dispatch
from shardq.core.layout.keys import shard_keys

SHARD_COUNTS = (16, 64, 256)
BATCH = 20_000
"""Tasks in a round."""

LATER_S = 2 * SPREAD_S
LIMIT = 500
"""The most tasks of one dispatch."""


def _measure(stand: Stand) -> Iterator[Figure]:
    levels = stand.pick((1_000, 5_000), (10_000, 100_000, 1_000_000), (10_000, 100_000, 1_000_000, 10_000_000))
    whole = stand.pick(4_000, 4 * BATCH)
    for shards in SHARD_COUNTS:
        with stand.engine(shards=shards) as engine:
            have = 0
            for level in levels:
                stand.say(f"{shards} shards, {level:,} pending")
                for _ in engine.push_iter(_tasks(level - have)):
                    pass
                have = level
                pushing, moving, pushed, moved = Spent(), Spent(), 0, 0
                batch = min(BATCH, level // 2)
                for _ in range(whole // batch):
                    tasks = list(_tasks(batch))
                    with stand.metering() as spent:
                        engine.push_many(tasks)
                    pushing.add(spent)
                    pushed += batch
                    with stand.metering() as spent:
                        moved += _moved(stand, engine, batch)
                    moving.add(spent)
                for work, spent, total in (("push", pushing, pushed), ("dispatch", moving, moved)):
                    figure = server_cost(f"{work}, {level:,} pending, {shards} shards", total, spent)
                    at: dict[str, float | str] = {"curve": f"backlog: {work}", "pending": level, "shards": shards}
                    yield Figure(figure.name, figure.value, figure.unit, reference=f"{batch:,} a round", at=at)


SUITE = Suite("backlog", "server CPU of a task against the number pending, in 16, 64 and 256 shards", _measure)


def _tasks(count: int) -> Iterator[Task]:
    source = random.Random(count)
    return (Task(PAYLOAD, delay=source.uniform(0, SPREAD_S)) for _ in range(count))


def _moved(stand: Stand, engine: Engine, batch: int) -> int:
    """Makes the earliest tasks ready, an equal share of each shard or all it has, and returns their number."""
    now_us = str(int((time.time() + LATER_S) * 1e6))
    shards, moved = engine.topology.shards, 0
    for shard in range(shards):
        keys = shard_keys(engine.name, shard)
        left = (batch + shard) // shards
        while left > 0:
            limit = min(left, LIMIT)
            call = dispatch.dispatch(keys, engine.topology.stamp, [""], limit=limit, max_attempts=1).at(now_us)
            moved += stand.driver.call(call).moved
            left -= limit
    return moved
