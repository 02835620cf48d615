"""A cancelled call of an asyncio engine leaves nothing behind, and another event loop can't use the engine."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Delivery, Engine
from shardq.errors import EngineClosed
from tests.support.engines import SHARDS
from tests.support.leaks import Leaks, engine_threads
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

RETRY_FOR_S = 60.0
"""Of the engines here: whoever waits for a server that stands still waits for so long."""

PROMPT_S = 20.0


def duties() -> set[str]:
    """The threads by which a process takes part in dispatching."""
    names = {thread.name for thread in engine_threads()}
    return {
        name for name in names if not name.startswith(("shardq-subscriber", "shardq-slot-watcher", "shardq-waiting"))
    }


# ---- cancelled half-way


@pytest.mark.parametrize("heard", [False, True])
def test_a_cancelled_start_leaves_no_poller(own_server: Server, name: str, heard: bool) -> None:
    async def main() -> None:
        engine = AsyncEngine(own_server.url, name=name, shards=SHARDS, timeout=RETRY_FOR_S)
        await engine.open()
        if heard:  # then the threads have their connections, and the start is cancelled in its first beat
            assert await engine.consumer().claim(1, wait=0.01) == []
        own_server.pause()
        start = asyncio.create_task(engine.start())
        _, begun = await asyncio.wait({start}, timeout=0.5)
        assert begun
        start.cancel()
        done, _ = await asyncio.wait({start}, timeout=PROMPT_S)
        assert done, "a cancelled start waits for nobody"
        assert start.cancelled()
        own_server.resume()
        await asyncio.to_thread(wait_until, lambda: not duties(), "every thread of the start has ended")
        assert (await engine.stats()).dispatchers == ()
        # and it can be started after all
        await engine.start()
        deadline = time.monotonic() + PROMPT_S
        while len((await engine.stats()).dispatchers) != 1:
            # the one that was cancelled could not sign off in time, and is taken for alive for three seconds
            assert time.monotonic() < deadline, "it is the only member"
            await asyncio.sleep(0.01)
        await engine.close()

    asyncio.run(main())


@pytest.mark.usefixtures("loops")
def test_a_close_that_is_cancelled_as_it_waits_for_a_start(own_server: Server, name: str) -> None:
    async def main() -> None:
        leaks = Leaks()
        engine = AsyncEngine(own_server.url, name=name, shards=SHARDS, timeout=RETRY_FOR_S)
        await engine.open()
        own_server.pause()
        start = asyncio.create_task(engine.start())
        await asyncio.wait({start}, timeout=0.2)
        close = asyncio.create_task(engine.close())
        await asyncio.wait({close}, timeout=0.2)
        close.cancel()
        await asyncio.wait({close})
        own_server.resume()
        async with asyncio.timeout(PROMPT_S):
            await start
        await asyncio.to_thread(leaks.check)

    asyncio.run(main())


# ---- another loop


@pytest.mark.usefixtures("loops")
def test_a_second_loop_is_refused_before_anything_is_sent(url: str, name: str) -> None:
    async def main() -> None:
        engine = AsyncEngine(url, name=name, shards=SHARDS, timeout=RETRY_FOR_S)
        await engine.open()
        consumer, growth = engine.consumer(), await engine.resize(dry_run=True)
        assert await consumer.claim(1, wait=0.01) == []
        worker = engine.worker()

        @worker.on("")
        def handle(delivery: Delivery) -> None: ...

        orders: list[Callable[[], Awaitable[object]]] = [
            lambda: engine.push("x"),
            lambda: engine.push("x", durability="fsynced"),
            lambda: engine.get("one"),
            engine.stats,
            lambda: engine.pause("topic"),
            consumer.claim,
            lambda: consumer.claim(1, wait=1.0),
            growth.progress,
            worker.run,
            engine.open,
            engine.start,
            engine.stop,
            engine.close,
        ]

        async def elsewhere() -> None:
            for order in orders:
                with pytest.raises(EngineClosed, match="another event loop: make one for this loop"):
                    await order()

        await asyncio.to_thread(asyncio.run, elsewhere())
        stats = await engine.stats()
        assert (stats.scheduled, stats.ready) == (0, 0)
        await engine.push("x", delay=FAR_S)
        assert (await engine.stats()).scheduled == 1
        await engine.close()
        # closed, it is anybody's
        await asyncio.to_thread(asyncio.run, _opened_and_closed(engine))

    asyncio.run(main())


async def _opened_and_closed(engine: AsyncEngine) -> None:
    async with engine:
        assert (await engine.stats()).scheduled == 1


@pytest.mark.usefixtures("loops")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # a loop that ends under its connections earns them
def test_a_loop_that_has_ended(url: str, name: str) -> None:
    leaks = Leaks()
    engine = AsyncEngine(url, name=name, shards=SHARDS, timeout=RETRY_FOR_S)

    async def first() -> None:
        await engine.start()
        await engine.push("x", delay=FAR_S)
        assert await engine.consumer().claim(1, wait=0.01) == []

    async def second() -> None:
        with pytest.raises(EngineClosed, match=r"has ended: open\(\) it again"):
            await engine.push("x", delay=FAR_S)
        await engine.open()
        assert len((await engine.stats()).dispatchers) == 1, "the pollers have gone on"
        await engine.push("y", topic="second")
        (delivery,) = await engine.consumer("second").claim(1, wait=30.0)
        assert delivery.payload == "y"

    asyncio.run(first())
    asyncio.run(second())
    asyncio.run(engine.close())
    gc.collect()
    leaks.check()
    with Engine(url, name=name) as other:
        assert other.stats().scheduled == 1


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_dead_tasks_come_one_by_one_or_as_a_list(url: str, name: str) -> None:
    async def main() -> tuple[list[str], list[str]]:
        async with AsyncEngine(url, name=name, shards=1) as engine:
            await engine.start()
            consumer = engine.consumer()
            await engine.push(1)
            for delivery in await consumer.claim(wait=RETRY_FOR_S):
                await consumer.bury(delivery, "of no use")
            return [task.id async for task in engine.dead()], [task.id for task in await engine.dead()]

    one_by_one, together = asyncio.run(main())
    assert one_by_one == together
    assert len(together) == 1
