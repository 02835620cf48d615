"""The clock for asyncio: what differs from the one for threads, whose commands it shares."""

from __future__ import annotations

import asyncio
import inspect

import pytest

import shardq
from shardq.testing import AsyncClock, Clock, assert_pushed, assert_ready, drain
from shardq.testing.adoption import adopted_of


def test_the_clocks_are_twins() -> None:
    for name, member in inspect.getmembers(Clock, inspect.isfunction):
        if not name.startswith("_"):
            ours, theirs = (inspect.signature(each).parameters for each in (member, getattr(AsyncClock, name)))
            assert list(ours) == list(theirs), name


def test_handlers_of_both_kinds_in_due_order(url: str) -> None:
    async def main() -> None:
        async with AsyncClock(url) as clock:
            engine = clock.adopt(shardq.AsyncEngine(shards=3))
            worker, seen = engine.worker(), list[tuple[object, float]]()
            begun = clock.now()

            @worker.on("")
            async def handle(delivery: shardq.Delivery) -> None:
                await asyncio.sleep(0)
                seen.append((delivery.payload, (clock.now() - begun).total_seconds()))
                if delivery.payload < 4:
                    await engine.push(delivery.payload + 1, delay=60, topic="function" if delivery.payload == 3 else "")

            @worker.on("function", max_attempts=2)
            def function(delivery: shardq.Delivery) -> None:
                seen.append((delivery.attempt, (clock.now() - begun).total_seconds()))
                raise shardq.Retry(delay=3600)

            clock.bind(worker)
            await engine.push(1, delay=60)
            await assert_pushed(engine, payload=1, delay=60)
            await engine.start()
            deliveries = await clock.advance(days=1)
            assert seen == [(1, 60), (2, 120), (3, 180), (1, 240), (2, 3840)]
            assert len(deliveries) == 5

    asyncio.run(main())


def test_inline_pushes_of_many_coroutines_are_all_handled(url: str) -> None:
    async def main() -> None:
        async with AsyncClock(url) as clock:
            engine = clock.adopt(shardq.AsyncEngine(shards=3))
            worker, seen = engine.worker(), set[int]()

            @worker.on("")
            async def handle(delivery: shardq.Delivery) -> None:
                await asyncio.sleep(0)
                seen.add(delivery.payload)
                if delivery.payload < 200:
                    await engine.push(delivery.payload + 1000)

            clock.bind(worker, inline=True)
            await engine.push(0)
            assert seen == {0, 1000}
            await asyncio.gather(*(engine.push(n) for n in range(1, 100)))
            assert seen == {*range(100), *range(1000, 1100)}

    asyncio.run(main())


def test_timeouts_and_cancellations(url: str) -> None:
    async def main() -> None:
        async with AsyncClock(url) as clock:
            engine = clock.adopt(shardq.AsyncEngine(shards=1))
            worker = engine.worker()
            begun = asyncio.Event()

            @worker.on("", timeout=0.1, max_attempts=1)
            async def hang(delivery: shardq.Delivery) -> None:
                await asyncio.sleep(1000)

            @worker.on("cancelled", max_attempts=1)
            async def cancelled(delivery: shardq.Delivery) -> None:
                begun.set()
                await asyncio.sleep(1000)

            clock.bind(worker)
            await engine.push("hangs")
            await clock.advance()
            assert [dead.reason for dead in await engine.tasks(state="dead")] == ["timed out after 0.1 s"]

            await engine.push("a", topic="cancelled")
            advancing = asyncio.create_task(clock.advance())
            await begun.wait()
            advancing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await advancing
            info = await assert_ready(engine, "a")  # given back: no attempt is counted
            [delivery] = await drain(engine, topic="cancelled")
            assert (delivery.id, delivery.attempt) == (info.id, 1)

    asyncio.run(main())


def test_an_engine_of_the_program_is_given_back_as_it_was(url: str, name: str) -> None:
    engine = shardq.AsyncEngine(url, name=name, shards=2)

    async def in_a_test() -> None:
        async with AsyncClock(url) as clock:
            clock.adopt(engine)
            await engine.push("in the test", delay=60)
            await clock.advance(minutes=1)
            assert [delivery.payload for delivery in await drain(engine)] == ["in the test"]

    async def in_earnest() -> None:
        async with engine:
            assert (engine.name, engine.topology.shards) == (name, 2)
            assert adopted_of(engine) is None
            await engine.push("in earnest", delay=60)
            assert (await engine.stats()).scheduled == 1

    asyncio.run(in_a_test())
    asyncio.run(in_earnest())


def test_a_worker_begins_before_its_first_task_and_ends_with_the_clock(url: str) -> None:
    order: list[str] = []

    async def main() -> None:
        async with AsyncClock(url) as clock:
            engine = clock.adopt(shardq.AsyncEngine(shards=2))
            worker = engine.worker()

            @worker.on_startup
            async def begin() -> None:
                order.append("begin")

            @worker.on_shutdown
            async def end() -> None:
                order.append("end")

            @worker.on("")
            async def handle(delivery: shardq.Delivery) -> None:
                order.append(f"{delivery.payload} {shardq.current().id == delivery.id}")

            clock.bind(worker)
            await engine.push(1, delay=60)
            await clock.advance(minutes=1)

    asyncio.run(main())
    assert order == ["begin", "1 True", "end"]
