"""The guard compares these ratios. Each is a figure of the engine ÷ one of the same run, and higher is better.

Work and limit take turns, and the median of each counts, so that other work of the machine falls on both. Both wait for
the same things: a loop of round trips beside coroutines that keep a core busy would compare machines, not revisions.
Beside redis-py, this process's CPU time counts, less that of a bare PING for each trip. What is left is Python's part;
how long a trip takes, and how fast the server is, differs from machine to machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Container, Iterator
from dataclasses import replace
from operator import attrgetter
from statistics import median, quantiles

import redis.asyncio

from bench import limit
from bench.consuming import CLAIM, batches, claim_ahead_and_ack, claim_and_ack, function, running
from bench.loads import FAR_S, PAYLOAD, spread_tasks
from bench.stand import SHARDS, Stand
from bench.suites import consume, dispatch, flow, keys, scales
from bench.suites.fleet import drained
from cluster.ports import HOST
from shardq import AsyncEngine, Engine, Task, metrics
from shardq.core.model.record import JSON

ROUNDS = 3
COUNT = 200_000
BURST = 300_000
ONE_BY_ONE = 1_500
PINGS = 5_000
COROUTINES = 200
DRAINED = 400_000
FEW, MANY = 20, 200
"""Consumers of a fleet: in one process, and in four."""
SCRAPE_S = 0.5
"""The CPU time of this process between two reads of its metrics: of a busy machine it gets less. Prometheus reads every
15 s.
"""
FLOW_S = 1.5
BEHIND = 1_000
"""Tasks of each shard. A backlog of so many, dispatched at full speed, takes the lateness to compare with."""
CONNECTIONS = 64
"""Those of an engine to a node."""
SCALED = 500
"""Tasks whose scripts are counted."""

MEMORY = "memory: bare ZSET and HASH ÷ a pending task"

PROMPT = f"{BEHIND:,} tasks of each shard at full speed ÷ p99 of lateness at half of it"

KEYED: dict[str, Callable[[keys.Costs], float]] = {
    f"{verb} with keys ÷ without, the server's CPU time": attrgetter(verb) for verb in keys.Costs._fields
}

EXACT = (MEMORY,)
"""Ratios that hardly differ from run to run."""

Rate = Callable[[Stand], float]


def measured(stand: Stand, only: Container[str]) -> Iterator[tuple[str, float]]:
    """Yields each ratio of ``only`` with its name. Without a C client, those that need none remain."""
    for name, rate, beside in _PAIRS:
        if name not in only:
            continue
        if beside in _BY_THE_C_CLIENT and not limit.program():
            stand.say(limit.MISSING)
            continue
        ours, theirs = [], []
        stand.say(f"{name}, {ROUNDS} rounds")
        for _ in range(ROUNDS):
            ours.append(rate(stand))
            theirs.append(beside(stand))
        yield name, median(ours) / median(theirs)
    if wanted := [name for name in KEYED if name in only]:
        stand.say(f"keys, {ROUNDS} rounds")
        found = _with_keys(stand)
        for name in wanted:
            yield name, KEYED[name](found)
    if PROMPT in only:
        stand.say("lateness")
        yield PROMPT, median(_prompt(stand) for _ in range(ROUNDS))
    if MEMORY in only:
        stand.say("memory")
        yield MEMORY, _memory(stand)
    for name, (most, sizes) in _SCALES.items():
        if name in only:
            stand.say(name)
            yield name, most / scales.of_a_task(stand, sizes, count=SCALED)


# ---- the engine's


def _push_one(stand: Stand) -> float:
    delays = itertools.cycle(task.delay for task in spread_tasks(997))
    with stand.engine() as engine:
        engine.push(PAYLOAD, delay=FAR_S)
        return _without_trips(stand, _cpu_rate(lambda: engine.push(PAYLOAD, delay=next(delays))))


def _push_many(stand: Stand) -> float:
    tasks = spread_tasks(COUNT)
    with stand.engine() as engine:
        engine.push_many(tasks[:SHARDS])
        return _per_s(COUNT, lambda: engine.push_many(tasks))


def _push_iter(stand: Stand) -> float:
    with stand.engine() as engine:
        engine.push_many(spread_tasks(SHARDS))
        return _per_s(COUNT, lambda: list(engine.push_iter(iter(spread_tasks(COUNT)))))


def _push_async(stand: Stand) -> float:
    with stand.engine() as engine:
        return asyncio.run(_async_pushes(stand.url, engine.name))


def _push_async_by_cpu(stand: Stand) -> float:
    with stand.engine() as engine:
        return asyncio.run(_async_pushes(stand.url, engine.name, time.process_time))


async def _async_pushes(url: str, name: str, clock: Callable[[], float] = time.perf_counter) -> float:
    async with AsyncEngine(url, name=name) as engine:
        return await _by_coroutines(lambda: engine.push(PAYLOAD, delay=FAR_S), clock)


def _push_alone(stand: Stand) -> float:
    with stand.engine() as engine:
        return asyncio.run(_pushes_of_one(stand.url, engine.name))


async def _pushes_of_one(url: str, name: str) -> float:
    async with AsyncEngine(url, name=name) as engine:
        await engine.push(PAYLOAD, delay=FAR_S)
        began = time.perf_counter()
        for _ in range(ONE_BY_ONE):
            await engine.push(PAYLOAD, delay=FAR_S)
        return ONE_BY_ONE / (time.perf_counter() - began)


async def _by_coroutines(once: Callable[[], Awaitable[object]], clock: Callable[[], float]) -> float:
    """The rate of an operation that COROUTINES coroutines do at once, again and again."""
    each = 50

    async def work(times: int) -> None:
        for _ in range(times):
            await once()

    await asyncio.gather(*(work(1) for _ in range(COROUTINES)))
    began = clock()
    await asyncio.gather(*(work(each) for _ in range(COROUTINES)))
    return COROUTINES * each / (clock() - began)


def _dispatch(stand: Stand) -> float:
    return BURST / dispatch.made_ready(stand, BURST).wall_s


def _forward(stand: Stand) -> float:
    return BURST / dispatch.forwarded(stand, BURST).wall_s


def _claim_and_ack(stand: Stand) -> float:
    return COUNT / consume.drained(stand, COUNT, claim_and_ack).wall_s


def _claim_ahead_and_ack(stand: Stand) -> float:
    return COUNT / consume.drained(stand, COUNT, claim_ahead_and_ack).wall_s


def _worker(stand: Stand) -> float:
    return COUNT / consume.drained(stand, COUNT, running(stand, function)).wall_s


def _worker_of_batches(stand: Stand) -> float:
    return COUNT / consume.drained(stand, COUNT, running(stand, batches)).wall_s


def _worker_with_metrics(stand: Stand) -> float:
    def work(engine: Engine, count: int) -> None:
        with _metrics_read(engine):
            running(stand, function)(engine, count)

    return COUNT / consume.drained(stand, COUNT, work).wall_s


@contextlib.contextmanager
def _metrics_read(engine: Engine) -> Iterator[None]:
    """Serves the metrics of an engine, and reads them all the time."""
    over = threading.Event()
    with metrics.serve(engine, "127.0.0.1:0") as server:

        def read() -> None:
            read_at = time.process_time()
            while not over.wait(0.01):
                if time.process_time() - read_at >= SCRAPE_S:
                    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
                        answer.read()
                    read_at = time.process_time()

        reader = threading.Thread(target=read, name="reader")
        reader.start()
        try:
            yield
        finally:
            over.set()
            reader.join()


def _many_consumers(stand: Stand) -> float:
    return drained(stand, DRAINED, MANY).rate


def _few_consumers(stand: Stand) -> float:
    return drained(stand, DRAINED, FEW).rate


def _with_keys(stand: Stand) -> keys.Costs:
    """The cost without keys ÷ with, of each."""
    rounds = [(keys.costs(stand, keyed=False), keys.costs(stand, keyed=True)) for _ in range(ROUNDS)]
    without, keyed = (zip(*each, strict=True) for each in zip(*rounds, strict=True))
    return keys.Costs(*(median(plain) / median(one) for plain, one in zip(without, keyed, strict=True)))


def _prompt(stand: Stand) -> float:
    """Returns the time that a backlog of some tasks in each shard takes at full speed ÷ the lateness that 99 of 100
    tasks do not exceed while half as many fall due as can be dispatched. So it does not matter how fast the machine is.
    """
    most = flow.dispatched_per_s(stand)
    found = flow.flowing(stand, int(most * flow.SHARE), FLOW_S)
    missing = [FLOW_S * 1000] * (found.probes - len(found.rows))
    return SHARDS * BEHIND / most * 1000 / quantiles([*found.late_ms, *missing], n=100)[98]


# ---- what stands beside them


def _set(stand: Stand) -> float:
    value = JSON.encode(PAYLOAD)
    numbers = itertools.count()
    with stand.redis_py() as client:
        client.ping()
        rate = _cpu_rate(lambda: client.set(f"guard-{next(numbers)}", value))
    stand.clear()
    return _without_trips(stand, rate)


def _async_set(stand: Stand) -> float:
    rate = asyncio.run(_async_sets(stand.url))
    stand.clear()
    return _without_trips(stand, rate)


async def _async_sets(url: str) -> float:
    value, numbers = JSON.encode(PAYLOAD), itertools.count()
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=CONNECTIONS)
    async with redis.asyncio.Redis.from_pool(pool) as client:
        return await _by_coroutines(lambda: client.set(f"guard-{next(numbers)}", value), time.process_time)


def _c_push(stand: Stand) -> float:
    return limit.push_rate(stand, COUNT)


def _c_dispatch(stand: Stand) -> float:
    return limit.dispatch_rate(stand, BURST)


def _c_forward(stand: Stand) -> float:
    return 1 / (1 / limit.dispatch_rate(stand, BURST) + 1 / limit.forward_rate(stand, BURST))


def _c_claim(stand: Stand) -> float:
    return limit.claim_rate(stand, COUNT, claim=CLAIM)


_BY_THE_C_CLIENT = (_c_push, _c_dispatch, _c_forward, _c_claim)

_PAIRS: tuple[tuple[str, Rate, Rate], ...] = (
    ("push, one at a time ÷ SET, CPU time beyond PING", _push_one, _set),
    ("AsyncEngine ÷ redis.asyncio SET, 200 coroutines each, CPU time beyond PING", _push_async_by_cpu, _async_set),
    ("push_many ÷ C client", _push_many, _c_push),
    ("push_iter ÷ C client", _push_iter, _c_push),
    ("dispatch ÷ C client", _dispatch, _c_dispatch),
    ("dispatch and forward ÷ C client", _forward, _c_forward),
    ("claim and ack ÷ C client's claim", _claim_and_ack, _c_claim),
    ("claim and ack, prefetch=True ÷ C client's claim", _claim_ahead_and_ack, _c_claim),
    ("worker ÷ C client's claim", _worker, _c_claim),
    ("worker whose metrics are read ÷ worker", _worker_with_metrics, _worker),
    ("worker with batches of 500 ÷ worker", _worker_of_batches, _worker),
    ("pushes of 200 coroutines ÷ of one", _push_async, _push_alone),
    ("200 consumers in four processes ÷ 20 in one", _many_consumers, _few_consumers),
)


_SCALES = {
    f"{most} scripts ÷ those of a task, {sizes}": (most, sizes)
    for most, sizes in (
        (8, scales.BASE),
        (8, replace(scales.BASE, consumers=100)),
        (8, replace(scales.BASE, shards=64)),
        (12, replace(scales.BASE, topics=5_000)),
        (10, replace(scales.BASE, shards=64, dead=1_000)),
        (6, replace(scales.BASE, limit="rate", consumers=50, shards=64)),
        (6, replace(scales.BASE, limit="concurrency", consumers=50, shards=64)),
    )
}

BOUNDED = tuple(_SCALES)
"""Ratios of a bound and a count. They are nothing to learn: below 1 is too many."""

NAMES = (*(name for name, _, _ in _PAIRS), *KEYED, PROMPT, MEMORY, *BOUNDED)


def _per_s(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def _cpu_rate(once: Callable[[], object]) -> float:
    began = time.process_time()
    for _ in range(ONE_BY_ONE):
        once()
    return ONE_BY_ONE / (time.process_time() - began)


def _without_trips(stand: Stand, rate: float) -> float:
    """What the rate would be if a trip cost this process nothing: bare PINGs tell what it costs."""
    with socket.create_connection((HOST, stand.masters[0].port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        began = time.process_time()
        for _ in range(PINGS):
            sock.sendall(b"PING\r\n")
            sock.recv(64)
        return 1 / (1 / rate - (time.process_time() - began) / PINGS)


def _memory(stand: Stand) -> float:
    """Returns the memory of one sorted set and one hash ÷ that of one shard with the same tasks. Ids are of our making
    in both: the record of a task with a caller's id has ten bytes more, a nonce.
    """
    tasks = [Task(PAYLOAD, delay=FAR_S + number) for number in range(12_500)]
    with stand.engine(shards=1) as engine:
        engine.push_many(tasks[:1])
        engine.close()
        before = stand.memory()
        with engine:
            ids = engine.push_many(tasks)
        ours = stand.memory() - before
    value = JSON.encode(PAYLOAD)
    before = stand.memory()
    with stand.redis_py() as client:
        for number, id in enumerate(ids):
            client.zadd("guard-due", {id: FAR_S + number})
            client.hset("guard-task", id, value)
    bare = stand.memory() - before
    stand.clear()
    return bare / ours
