"""A claim whose caller is interrupted gives back what it got, and counts no attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import AsyncConsumer, AsyncEngine, Engine, ServerFault, Task
from shardq.core.layout.keys import control_keys
from tests.support.servers import Servers, keys_of
from tests.support.states import counted
from tests.support.waiting import wait_until
from tests.support.workers import Worker

TASKS = 20
LEASE_S = 3600.0
PROMPT_S = 10.0
"""Below the engine's timeout; a few ms on an idle machine."""

TIMEOUT_S = 60.0


@pytest.fixture
def servers(own_server: Server) -> Iterator[Servers]:
    with Servers(own_server.url) as servers:
        yield servers


@pytest.fixture(params=[1, 4])
def filled(request: pytest.FixtureRequest, own_server: Server, name: str) -> Engine:
    """So many shards with tasks of one attempt that are ready, in two topics, the second with limits. Closed."""
    with Engine(own_server.url, name=name, shards=request.param) as engine:
        engine.start()
        engine.limit("limited", concurrency=TASKS)
        for topic in ("plain", "limited"):
            engine.push_many([Task(n, topic=topic, max_attempts=1) for n in range(TASKS)])
        wait_until(lambda: engine.stats().ready == 2 * TASKS, "all are ready")
    return engine


@contextlib.contextmanager
def unanswered(servers: Servers) -> Iterator[Callable[[], bool]]:
    """Within the block the server runs no script; gives whether it has got one."""
    servers.ask_all("CLIENT", "PAUSE", 600_000, "WRITE")
    try:
        yield lambda: any(b"flags=b" in text for text in servers.ask_all("CLIENT", "LIST"))
    finally:
        servers.ask_all("CLIENT", "UNPAUSE")


async def until(predicate: Callable[[], bool], sentence: str) -> None:
    await asyncio.to_thread(wait_until, predicate, sentence)


def permits(servers: Servers, name: str) -> int:
    control = control_keys(name)
    return int(servers.ask(control.slot, "ZCARD", control.permits("limited")))


def held(engine: Engine, servers: Servers) -> int:
    """Leases and permits."""
    (keys,) = servers.ask_all("KEYS", f"shardq:{{{engine.name}:*}}:leased")
    return sum(int(servers.ask(0, "ZCARD", key)) for key in keys) + permits(servers, engine.name)


def check_nothing_is_held(engine: Engine, servers: Servers, *, done: int = 0) -> None:
    """No lease, no permit, and all the attempts there were."""

    assert held(engine, servers) == 0
    with engine:
        stats = counted(engine)
        assert (stats.ready + stats.scheduled, stats.dead) == (2 * TASKS - done, 0)
        engine.start()
        consumer = engine.consumer(["plain", "limited"])
        for _ in range(2 * TASKS - done):
            (delivery,) = consumer.claim(1, wait=30.0)
            assert delivery.attempt == 1
            consumer.ack(delivery)


@contextlib.asynccontextmanager
async def claiming(engine: Engine, topic: str, server: Server) -> AsyncIterator[AsyncConsumer]:
    """A consumer that has its connections."""
    async with AsyncEngine(server.url, name=engine.name, timeout=TIMEOUT_S) as opened:
        await opened.consumer("other").claim(1)
        yield opened.consumer(topic, lease=LEASE_S)


async def cancelled(claim: Awaitable[object], asked: Callable[[], bool]) -> None:
    """Cancels it when the server has the script and does not answer."""
    task = asyncio.ensure_future(claim)
    await until(asked, "the server has been asked")
    task.cancel()
    began = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - began < PROMPT_S


@pytest.mark.parametrize("topic", ["plain", "limited"])
@pytest.mark.parametrize("way", ["claim", "wait", "loop"])
def test_a_cancelled_claim_gives_back_what_it_got(
    filled: Engine, own_server: Server, servers: Servers, topic: str, way: str
) -> None:
    async def loop(consumer: AsyncConsumer) -> None:
        async for _ in consumer:
            raise AssertionError("nobody answers")

    async def run() -> None:
        async with claiming(filled, topic, own_server) as consumer:
            with unanswered(servers) as asked:
                match way:
                    case "claim":
                        await cancelled(consumer.claim(TASKS), asked)
                    case "wait":
                        await cancelled(consumer.claim(TASKS, wait=LEASE_S), asked)
                    case _:
                        await cancelled(loop(consumer), asked)
            await until(lambda: held(filled, servers) == 0, "the leases are back while the engine is open")

    asyncio.run(run())
    check_nothing_is_held(filled, servers)


def test_an_engine_that_closes_waits_for_it(filled: Engine, own_server: Server, servers: Servers) -> None:
    async def run() -> None:
        async with claiming(filled, "limited", own_server) as consumer:
            with unanswered(servers) as asked:
                await cancelled(consumer.claim(TASKS), asked)

    asyncio.run(run())
    # nobody is left who could give it back
    assert held(filled, servers) == 0
    check_nothing_is_held(filled, servers)


def test_an_engine_that_closes_does_not_wait_for_a_dead_server(
    filled: Engine, own_server: Server, servers: Servers
) -> None:
    async def run() -> float:
        async with claiming(filled, "limited", own_server) as consumer:
            with unanswered(servers) as asked:
                task = asyncio.ensure_future(consumer.claim(TASKS))
                await until(asked, "the server has been asked")
            own_server.pause()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return time.monotonic()

    try:
        assert time.monotonic() - asyncio.run(run()) < TIMEOUT_S / 2
    finally:
        own_server.resume()


def test_a_loop_that_is_left_settles_its_delivery_before_the_engine_is_closed(
    filled: Engine, own_server: Server, servers: Servers
) -> None:
    async def run() -> None:
        async with claiming(filled, "limited", own_server) as consumer:
            async for _ in consumer:
                break

    asyncio.run(run())
    assert held(filled, servers) == 0


@pytest.mark.parametrize("topic", ["plain", "limited"])
def test_a_claim_interrupted_in_the_main_thread(
    filled: Engine, own_server: Server, servers: Servers, topic: str
) -> None:
    with Worker("tests.support.interrupted_claim", own_server.url, filled.name, topic) as worker:
        assert worker.said() == "ready"
        with unanswered(servers) as asked:
            worker.tell()
            wait_until(asked, "the server has been asked")
            os.kill(worker.pid, signal.SIGINT)
            wait_until(lambda: not pending(worker.pid), "it has the signal")
        assert worker.said() == "interrupted"
        assert worker.stop() == 0
    assert held(filled, servers) == 0
    check_nothing_is_held(filled, servers)


def pending(pid: int) -> bool:
    """Whether a signal waits to be handled."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(int(line.split()[1], 16) for line in lines if line.startswith(("SigPnd", "ShdPnd")))


def test_a_claim_that_fails_gives_its_permits_back(filled: Engine, servers: Servers) -> None:
    for keys in keys_of(filled.name, filled.topology.shards):
        servers.ask(keys.slot, "SET", keys.leased, "what is not ours")
    with filled:
        consumer = filled.consumer("limited")
        with pytest.raises(ServerFault, match="WRONGTYPE"):
            consumer.claim(TASKS)
        assert permits(servers, filled.name) == 0


@pytest.mark.parametrize("order", ["ack", "retry", "bury", "leave the loop"])
def test_a_settling_that_is_cancelled_is_finished(
    filled: Engine, own_server: Server, servers: Servers, order: str
) -> None:
    """With the permits that go back behind it."""

    async def loop(consumer: AsyncConsumer, begun: asyncio.Event) -> None:
        async for _ in consumer:
            begun.set()
            await asyncio.sleep(0.05)

    async def run() -> None:
        async with claiming(filled, "limited", own_server) as consumer:
            if order == "leave the loop":
                begun = asyncio.Event()
                task = asyncio.ensure_future(loop(consumer, begun))
                await begun.wait()
                with unanswered(servers) as asked:
                    await cancelled(task, asked)
                return
            deliveries = await consumer.claim(TASKS)
            with unanswered(servers) as asked:
                match order:
                    case "ack":
                        await cancelled(consumer.ack(deliveries), asked)
                    case "retry":
                        await cancelled(consumer.retry(deliveries), asked)
                    case _:
                        await cancelled(consumer.bury(deliveries, "why"), asked)

    asyncio.run(run())
    assert held(filled, servers) == 0
