"""What a push costs that returns when it is on the disk, under each policy of the append-only file, or when a replica
has it. Pushes that wait for the replica take turns with pushes that wait for nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from bench.figures import Figure, Spent, median, percentiles
from bench.loads import FAR_S, PAYLOAD
from bench.stand import Stand, Suite
from cluster.server import Server
from shardq import AsyncEngine, Engine, Task
from shardq.core.producer.durable import Durability
from shardq.errors import DurabilityUnavailable

Way: TypeAlias = "Durability | None"
WAYS: tuple[Way, ...] = (None, "replicated")

BULK = 1000
ONES = 100
COROUTINES = 200

POLICIES = ("always", "everysec")

TOGETHER = 20
"""Threads that push at a time: one confirmation of the disk is good for all of them."""


def _measure(stand: Stand) -> Iterator[Figure]:
    yield from _replicated(stand)
    for policy in POLICIES:
        for master in stand.masters:
            master.ask("CONFIG", "SET", "appendonly", "yes")
            master.ask("CONFIG", "SET", "appendfsync", policy)
        with stand.engine() as engine:
            try:
                engine.push(0, delay=FAR_S, durability="fsynced")
            except DurabilityUnavailable:
                stand.say("this server does not know WAITAOF")
                return
            # a push with everysec takes a second or two
            count = stand.pick(2, 10) if policy == "everysec" else stand.pick(20, 200)
            stand.say(f"{policy}: {count} fsynced pushes one after the other, and {TOGETHER * count} from threads")
            took = [_pushed_ms(engine) for _ in range(count)]
            yield Figure(f"fsynced push, appendfsync {policy}", median(took), "ms", percentiles(took))
            began = time.monotonic()
            with ThreadPoolExecutor(TOGETHER) as threads:
                list(threads.map(lambda _: _pushed_ms(engine), range(TOGETHER * count)))
            rate = TOGETHER * count / (time.monotonic() - began)
            yield Figure(f"fsynced pushes of {TOGETHER} threads, appendfsync {policy}", rate, "tasks/s")


def _replicated(stand: Stand) -> Iterator[Figure]:
    """``durability="replicated"`` beside none, on a master of its own with one replica."""
    binary, turns = stand.masters[0].binary, stand.pick(3, 20)
    stand.say(f"a master and its replica: {turns} turns with and without durability")
    with Server(binary) as master, Server(binary, options={"replicaof": f"127.0.0.1 {master.port}"}) as replica:
        while replica.client(decode=True).info("replication")["master_link_status"] != "up":
            time.sleep(0.05)
        with Engine(master.url, name="replicated", shards=16) as engine:
            engine.open()
            many = [Task(PAYLOAD, delay=FAR_S)] * BULK
            yield from _beside("in bulk", turns, BULK, lambda way: engine.push_many(many, durability=way), master)
            yield from _beside(
                "one by one", turns, ONES,
                lambda way: [engine.push(PAYLOAD, delay=FAR_S, durability=way) for _ in range(ONES)], master,
            )  # fmt: skip
        yield from asyncio.run(_on_asyncio(master, turns))


def _beside(name: str, turns: int, each: int, push: Callable[[Way], object], master: Server) -> Iterator[Figure]:
    spent: dict[Way, Spent] = {way: Spent() for way in WAYS}
    for way in WAYS:
        push(way)  # this turn connects
    for _ in range(turns):
        for way in WAYS:
            client, server, began = time.process_time(), _cpu_s(master), time.perf_counter()
            push(way)
            wall_s, client_s = time.perf_counter() - began, time.process_time() - client
            spent[way].add(Spent(wall_s, client_s, _cpu_s(master) - server))
    yield from _compared(name, turns * each, spent)


async def _on_asyncio(master: Server, turns: int) -> list[Figure]:
    """Coroutines, each of which pushes one by one."""
    spent: dict[Way, Spent] = {way: Spent() for way in WAYS}
    async with AsyncEngine(master.url, name="replicated") as engine:

        def pushes(way: Way) -> Awaitable[object]:
            some = (engine.push(PAYLOAD, delay=FAR_S, durability=way) for _ in range(COROUTINES))
            return asyncio.gather(*some)

        for way in WAYS:
            await pushes(way)
        for _ in range(turns):
            for way in WAYS:
                client, server, began = time.process_time(), _cpu_s(master), time.perf_counter()
                await pushes(way)
                wall_s, client_s = time.perf_counter() - began, time.process_time() - client
                spent[way].add(Spent(wall_s, client_s, _cpu_s(master) - server))
    return list(_compared(f"{COROUTINES} coroutines", turns * COROUTINES, spent))


def _compared(name: str, count: int, spent: dict[Way, Spent]) -> Iterator[Figure]:
    bare, safe = spent[None], spent["replicated"]
    ratio = bare.wall_s / safe.wall_s
    without = f"{ratio:.2f} of those without ({count / bare.wall_s:,.0f}/s)"
    yield Figure(f"replicated pushes, {name}", count / safe.wall_s, "tasks/s", reference=without, ratio=ratio)
    for what, mine, bare_s in (("client", safe.client_s, bare.client_s), ("server", safe.server_s, bare.server_s)):
        figure = f"replicated pushes, {name}: {what} CPU"
        without = f"without: {bare_s / count * 1e6:.1f}"
        yield Figure(figure, mine / count * 1e6, "µs/task", reference=without)


def _cpu_s(server: Server) -> float:
    told = server.client(decode=True).info("cpu")
    return float(told["used_cpu_user"]) + float(told["used_cpu_sys"])


def _pushed_ms(engine: Engine) -> float:
    began = time.monotonic()
    engine.push(0, delay=FAR_S, durability="fsynced")
    return (time.monotonic() - began) * 1000


SUITE = Suite("durable", "pushes that wait for the disk, or for a replica", _measure)
