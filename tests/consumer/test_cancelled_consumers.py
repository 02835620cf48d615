"""Consumers and workers of asyncio, cancelled at each of their waits: what they held is given back or settled, once.

The other operations are in ``tests/engine/test_cancelled_at_every_wait.py``. Leases last for longer than the tests:
what is held by nobody never comes back by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from shardq import AsyncConsumer, AsyncEngine, AsyncWorker, Delivery, LeaseLost, Task
from tests.support.cancelling import CANCELLED, DURABLE, SOON_S, Make, cuts, maker, run, until
from tests.support.programs import Program
from tests.support.states import FAR_S

LEASE_S = 3600.0
TASKS = 400


@pytest.fixture(scope="module")
def server(server_binary: Path) -> Iterator[Server]:
    with Server(server_binary, options=DURABLE) as server:
        yield server


@pytest.fixture
def make(server: Server, name: str) -> Make:
    return maker(server, name)


async def filled(engine: AsyncEngine) -> None:
    """Starts the engine, and waits until so many tasks are ready."""
    await engine.start()
    await engine.push_many([Task(n) for n in range(TASKS)])

    async def ready() -> bool:
        return (await engine.stats()).ready == TASKS

    await until(ready, "all are ready")


async def let_go(engine: AsyncEngine, held: int = 0) -> None:
    """Waits until no more than so many tasks are leased."""

    async def back() -> bool:
        return (await engine.stats()).leased == held

    await until(back, "what cancelled callers got is given back")


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("way", ["claim", "wait", "ahead", "limited"])
def test_what_a_cancelled_claim_got_is_given_back(make: Make, way: str) -> None:
    async def main(engine: AsyncEngine) -> None:
        await filled(engine)
        if way == "limited":
            await engine.limit("", concurrency=TASKS)
        consumer = engine.consumer(lease=LEASE_S, prefetch=way == "ahead")
        got: list[Delivery] = []
        async for cut in cuts():
            deliveries = await cut.of(consumer.claim(2, wait=SOON_S if way == "wait" else 0.0))
            if deliveries is not CANCELLED:
                got += deliveries
        consumer.close()
        await let_go(engine, len(got))
        await consumer.ack(got)
        rest = engine.consumer(lease=LEASE_S)
        while len(got) < TASKS:
            deliveries = await rest.claim(TASKS, wait=SOON_S)
            assert deliveries, "all come back"
            got += deliveries
            await rest.ack(deliveries)
        assert Counter(delivery.payload for delivery in got) == Counter(range(TASKS))
        assert {delivery.attempt for delivery in got} == {1}

    run(make(), main)


def test_a_claim_that_waits_in_vain(make: Make) -> None:
    async def main(engine: AsyncEngine) -> None:
        await engine.start()
        consumer = engine.consumer(lease=LEASE_S)
        async for cut in cuts():
            assert await cut.of(consumer.claim(1, wait=0.02)) in ([], CANCELLED)
        await engine.push("x")
        (delivery,) = await consumer.claim(1, wait=SOON_S)
        await consumer.ack(delivery)

    run(make(), main)


@pytest.mark.usefixtures("loops")
def test_a_claim_that_a_task_wakes(make: Make) -> None:
    async def main(engine: AsyncEngine) -> None:
        await engine.start()
        consumer = engine.consumer(lease=LEASE_S)
        async for cut in cuts():
            pushing = asyncio.create_task(engine.push(cut.number, delay=0.05))
            deliveries = await cut.of(consumer.claim(1, wait=SOON_S))
            await pushing
            if deliveries is CANCELLED:
                await let_go(engine)
                deliveries = await consumer.claim(1, wait=SOON_S)
            assert [(each.payload, each.attempt) for each in deliveries] == [(cut.number, 1)]
            await consumer.ack(deliveries)

    run(make(), main)


@pytest.mark.slow
def test_a_timeout_around_a_claim_that_waits_for_longer(make: Make) -> None:
    """Claims are woken all the time, also as their time is over, and mostly find that another was quicker."""

    async def main(engine: AsyncEngine) -> None:
        await engine.start()

        async def push() -> None:
            while True:
                await engine.push("x", delay=0.001)

        async def take() -> None:
            async for _ in engine.consumer():
                pass

        others = [asyncio.create_task(work()) for work in (push, take, take)]
        consumer = engine.consumer(lease=LEASE_S)
        for _ in range(300):
            ended = False
            try:
                async with asyncio.timeout(0.03) as scope:
                    while True:
                        await consumer.ack(await consumer.claim(1, wait=SOON_S))
            except TimeoutError:
                ended = True
            assert (scope.expired(), ended) == (True, True)
        for other in others:
            other.cancel()
        await asyncio.wait(others)

    run(make(), main)


LOOPING = """
import asyncio, sys
import shardq


async def handle(engine):
    async for _ in engine.consumer("mail"):
        await asyncio.sleep(0)


async def feed(engine):
    while True:
        await engine.push("hello", topic="mail", delay=0.001)


async def main(url, name):
    async with shardq.AsyncEngine(url, name=name, shards=4) as engine:
        await engine.start()
        print("begun", flush=True)
        async with asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(handle(engine))
            group.create_task(feed(engine))


try:
    asyncio.run(main(*sys.argv[1:]))
except KeyboardInterrupt:
    print("ended")
"""


@pytest.mark.slow
def test_one_ctrl_c_ends_loops_over_consumers(server: Server, name: str) -> None:
    for number in range(8):
        program = Program("-c", LOOPING, server.url, f"{name}{number}", variables={})
        try:
            program.until("begun")
            for _ in range(number):
                server.ask("PING")  # another instant each time
            program.interrupt()
            assert program.ends_well()[-1] == "ended"
        finally:
            program.end()


@pytest.mark.usefixtures("loops")
def test_a_loop_over_a_consumer(make: Make) -> None:
    async def main(engine: AsyncEngine) -> None:
        await filled(engine)
        consumer = engine.consumer(lease=LEASE_S)
        handled: set[str] = set()

        async def loop() -> None:
            count = 0
            async for delivery in consumer:
                await asyncio.sleep(0)
                handled.add(delivery.id)
                if (count := count + 1) == 2:
                    return

        async for cut in cuts():
            await cut.of(loop())
        await let_go(engine)
        stats = await engine.stats()
        assert TASKS - len(handled) <= stats.ready + stats.scheduled <= TASKS

    run(make(), main)


async def in_block(consumer: AsyncConsumer, delivery: Delivery) -> None:
    async with consumer.settling(delivery):
        await asyncio.sleep(0)


SETTLED: dict[str, tuple[Callable[[AsyncConsumer, Delivery], Coroutine[Any, Any, None]], str]] = {
    "ack": (lambda consumer, delivery: consumer.ack(delivery), "gone"),
    "retry": (lambda consumer, delivery: consumer.retry(delivery, delay=FAR_S), "scheduled"),
    "bury": (lambda consumer, delivery: consumer.bury(delivery, "of no use"), "dead"),
    "snooze": (lambda consumer, delivery: consumer.snooze(delivery, FAR_S), "scheduled"),
    "extend": (lambda consumer, delivery: consumer.extend(delivery, LEASE_S), "leased"),
    "settling": (in_block, "gone"),
}


@pytest.mark.parametrize("way", SETTLED)
def test_a_settling_is_done_once_or_can_be_done_again(make: Make, way: str) -> None:
    settle, after = SETTLED[way]

    async def main(engine: AsyncEngine) -> None:
        await filled(engine)
        consumer = engine.consumer(lease=LEASE_S)
        given_back = 0
        async for cut in cuts():
            (delivery,) = await consumer.claim(1, wait=SOON_S)
            assert delivery.attempt == 1
            await cut.of(settle(consumer, delivery))

            async def known(delivery: Delivery = delivery) -> str:
                task = await engine.get(delivery.id)
                return "gone" if task is None else task.state

            if way == "settling":

                async def over(known: Callable[[], Coroutine[Any, Any, str]] = known) -> bool:
                    return await known() != "leased"

                await until(over, "a block is settled, whatever ends it")
                given_back += await known() in ("ready", "scheduled")
                continue
            assert await known() in ("leased", after)
            with contextlib.suppress(LeaseLost):
                await settle(consumer, delivery)
            task = await engine.get(delivery.id)
            assert ("gone" if task is None else task.state) == after
            assert task is None or task.failures == {"retry": 1, "bury": 1, "snooze": 0, "extend": 0}[way]
        if way == "settling":
            assert given_back, "a block that was left gives back"

    run(make(), main)


@pytest.mark.usefixtures("loops")
def test_a_worker_gives_back_what_it_has_not_done(make: Make) -> None:
    async def main(engine: AsyncEngine) -> None:
        await engine.start()
        done: list[str] = []
        pushed: list[str] = []
        async for cut in cuts():
            worker = engine.worker(lease=LEASE_S)

            @worker.on("")
            async def handle(delivery: Delivery, worker: AsyncWorker = worker) -> None:
                await asyncio.sleep(0)
                done.append(delivery.id)
                worker.stop()

            pushed.append(await engine.push("x"))
            await cut.of(worker.run(signals=False))
            stats = await engine.stats()
            assert stats.leased == 0
        rest = len(pushed) - len(set(done))
        assert (stats.ready + stats.scheduled, stats.dead) == (rest, 0)

    run(make(), main)
