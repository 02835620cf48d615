"""The cost of a push: one at a time, in bulk, from threads and from coroutines.

redis-py's bare SET of the same payload, one at a time on the same servers, takes turns with the push one at a time. The
same push script driven by a C client takes turns with the bulk.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterator

from bench import limit
from bench.figures import Figure, Spent, client_cost, middle, rate, server_cost
from bench.loads import PAYLOAD, SPREAD_S, spread_tasks
from bench.stand import SHARDS, Stand, Suite
from shardq import AsyncEngine, Buffer, Task
from shardq.core.model.record import JSON

TURN = 500
"""The number of single pushes, then of SETs, in a turn."""

BULK = f"{limit.BATCH} a call, 1 shard"
"""The way in which the C client pushes."""

THREADS = 8
COROUTINES = 200

_DELAYS = itertools.cycle(task.delay for task in spread_tasks(997))


def _measure(stand: Stand) -> Iterator[Figure]:
    yield from _one(stand)
    most = yield from _many(stand)
    yield from _iter(stand, most)
    yield from _buffered(stand)
    yield from _async(stand)


SUITE = Suite("push", "one at a time, in bulk, from 8 threads, from 200 coroutines", _measure)


def _one(stand: Stand) -> Iterator[Figure]:
    turns = stand.pick(2, 20)
    stand.say(f"push one at a time and SET one at a time, {turns} turns of {TURN}")
    client = stand.redis_py()
    value = JSON.encode(PAYLOAD)
    pushes, sets = Spent(), Spent()
    with stand.engine() as engine:
        engine.push(PAYLOAD, delay=SPREAD_S)  # this push connects, and loads the script
        for turn in range(turns):
            with stand.metering() as spent:
                for _ in range(TURN):
                    engine.push(PAYLOAD, delay=next(_DELAYS))
            pushes.add(spent)
            with stand.metering() as spent:
                for number in range(TURN):
                    client.set(f"bench-set-{turn}-{number}", value)
            sets.add(spent)
    client.close()
    count = turns * TURN
    ratio, bare = sets.wall_s / pushes.wall_s, count / sets.wall_s
    name = "push, one at a time"
    yield rate(name, count, pushes, reference=f"{ratio:.2f} of redis-py's SET ({bare:,.0f}/s); aim: ≥ 0.7", ratio=ratio)
    yield client_cost(name, count, pushes, reference=f"SET: {sets.client_s / count * 1e6:.1f}")
    yield server_cost(name, count, pushes)


def _many(stand: Stand) -> Generator[Figure, None, float | None]:
    """Returns the limit where there is a C client."""
    count = stand.pick(5_000, 100_000)
    tasks = spread_tasks(count)

    def pushed() -> Spent:
        with stand.engine() as engine:
            engine.push_many(tasks[:SHARDS])
            with stand.metering() as spent:
                engine.push_many(tasks)
        return spent

    spent, most = limit.in_turns(stand, "push_many", count, pushed, lambda: limit.push_rate(stand, count))
    name = f"push_many of {count:,} × 100 B"
    yield limit.beside(name, count, spent, most, BULK, aim="≥ 1.0")
    yield client_cost(name, count, spent, reference="aim: ≤ 3")
    yield server_cost(name, count, spent)
    return most


def _iter(stand: Stand, most: float | None) -> Iterator[Figure]:
    count = stand.pick(5_000, 100_000, 1_000_000)
    rounds: list[Spent] = []
    for number in range(limit.ROUNDS):
        stand.say(f"push_iter of {count:,} tasks, round {number + 1} of {limit.ROUNDS}")
        with stand.engine() as engine:
            engine.push_many(spread_tasks(SHARDS))
            with stand.metering() as spent:
                for _ in engine.push_iter(Task(PAYLOAD, delay=next(_DELAYS)) for _ in range(count)):
                    pass
            rounds.append(spent)
    spent = middle(rounds)
    name = f"push_iter of {count:,} × 100 B, made on the way"
    yield limit.beside(name, count, spent, most, BULK, aim="≥ 1.0")
    yield client_cost(name, count, spent)


def _buffered(stand: Stand) -> Iterator[Figure]:
    """Threads go on and ask later whether their tasks are stored; then others wait for each of their tasks."""
    for title, each, push, aim in (
        ("asking later", stand.pick(500, 10_000), _push_then_ask, "aim: ≥ 80,000"),
        ("waiting for each", stand.pick(100, 1_000), _push_and_wait, ""),
    ):
        stand.say(f"buffered pushes from {THREADS} threads, {title}")
        with stand.engine() as engine, engine.buffered() as buffer:
            buffer.push(PAYLOAD, delay=SPREAD_S).result()
            with stand.metering() as spent:
                _in_threads(push, buffer, each)
        name = f"buffered, {THREADS} threads, {title}"
        yield rate(name, THREADS * each, spent, reference=aim)
        yield client_cost(name, THREADS * each, spent)


def _in_threads(push: Callable[[Buffer, int], None], buffer: Buffer, each: int) -> None:
    threads = [threading.Thread(target=push, args=(buffer, each)) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _push_then_ask(buffer: Buffer, count: int) -> None:
    pending = [buffer.push(PAYLOAD, delay=next(_DELAYS)) for _ in range(count)]
    for one in pending:
        one.result()


def _push_and_wait(buffer: Buffer, count: int) -> None:
    for _ in range(count):
        buffer.push(PAYLOAD, delay=next(_DELAYS)).result()


def _async(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(10, 100) * COROUTINES
    stand.say(f"AsyncEngine, {COROUTINES} coroutines")
    with stand.engine() as engine:
        spent = asyncio.run(_pushed_by_coroutines(stand, engine.name, count // COROUTINES))
    name = f"AsyncEngine, one at a time, {COROUTINES} coroutines"
    yield rate(name, count, spent)
    yield client_cost(name, count, spent)


async def _pushed_by_coroutines(stand: Stand, name: str, each: int) -> Spent:
    async with AsyncEngine(stand.url, name=name) as engine:

        async def push(times: int) -> None:
            for _ in range(times):
                await engine.push(PAYLOAD, delay=next(_DELAYS))

        await asyncio.gather(*(push(1) for _ in range(COROUTINES)))  # these pushes open the connections
        # it is metered by hand: the loop must not wait for the servers' answers while it works
        server, client, began = stand.cpu_s(), time.process_time(), time.perf_counter()
        await asyncio.gather(*(push(each) for _ in range(COROUTINES)))
        wall_s, client_s = time.perf_counter() - began, time.process_time() - client
        return Spent(wall_s, client_s, stand.cpu_s() - server)
