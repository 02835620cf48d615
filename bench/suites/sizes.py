"""The same work with payloads of 100 B and of 4 KiB, in 1, 16 and 64 shards."""

from __future__ import annotations

from collections.abc import Iterator

from bench import limit
from bench.consuming import claim_and_ack, function, running
from bench.figures import Figure, Spent, rate
from bench.loads import burst, payload_of, spread_tasks
from bench.stand import Stand, Suite

PAYLOADS = (100, 4096)
SHARD_COUNTS = (1, 16, 64)

PUSHED_PER_S = 30_000
"""The rate of pushing large payloads, with some room."""


def _measure(stand: Stand) -> Iterator[Figure]:
    for size in PAYLOADS:
        # as many bytes would be 40 times fewer tasks: too few to measure
        count = stand.pick(1_000, 50_000 if size == PAYLOADS[0] else 20_000)
        payload = payload_of(size)
        most = limit.push_rate(stand, count, payload=payload) if limit.program() else None
        for shards in SHARD_COUNTS:
            about = f"{size:,} B, {shards} {'shard' if shards == 1 else 'shards'}"
            stand.say(f"{about}, {count:,} tasks")
            for work, spent in _spent(stand, count, payload, shards):
                at: dict[str, float | str] = {"curve": f"sizes: {work}", "bytes": size, "shards": shards}
                if work == "push_many" and most:
                    yield limit.beside(f"{work}, {about}", count, spent, most, "1 shard", at=at)
                else:
                    busy = f"server busy {spent.server_s / spent.wall_s:.0%} of the time"
                    yield rate(f"{work}, {about}", count, spent, reference=busy, at=at)


SUITE = Suite("sizes", "payloads of 100 B and 4 KiB, in 1, 16 and 64 shards", _measure)


def _spent(stand: Stand, count: int, payload: str, shards: int) -> Iterator[tuple[str, Spent]]:
    tasks = spread_tasks(count, payload=payload)
    with stand.engine(shards=shards) as engine:
        engine.push_many(tasks[:shards])
        with stand.metering() as spent:
            engine.push_many(tasks)
    yield "push_many", spent
    for work, drain in (("claim + ack", claim_and_ack), ("worker", running(stand, function))):
        with stand.engine(shards=shards) as engine:
            engine.start()
            dispatched = burst(stand, engine, count, payload=payload, per_s=PUSHED_PER_S)
            engine.stop()
            with stand.metering() as spent:
                drain(engine, count)
        if work == "claim + ack":
            yield "dispatch", dispatched
        yield work, spent
