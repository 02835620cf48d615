"""Closing a consumer or its engine ends its waits and its loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardq import AsyncEngine, Delivery, Engine, Task
from shardq.errors import EngineClosed
from tests.consumer.waiters import LONG_S, PROMPT_S, Claim
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S, counted, put
from tests.support.waiting import wait_until

pytestmark = pytest.mark.square


def test_closing_ends_the_wait(
    running: Engine, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    consumer = running.consumer()
    claim = claims(consumer)
    all_wait(1)
    consumer.close()
    assert claim.result(PROMPT_S) == []
    assert consumer.claim(1, wait=LONG_S) == []
    put(running, "scheduled", id="later")
    running.reschedule("later", delay=FAR_S)


def test_a_loop_over_a_consumer(running: Engine) -> None:
    """What is done is acknowledged; what the body of the loop breaks off comes again."""
    running.push_many([Task(n) for n in range(5)])
    consumer = running.consumer()
    seen: list[str] = []

    def see(until: int) -> None:
        for delivery in consumer:
            seen.append(delivery.id)
            if len(seen) == until:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        see(until=3)
    with pytest.raises(ZeroDivisionError):
        see(until=6)
    assert len(set(seen)) == 5
    assert seen.count(seen[2]) == 2
    wait_until(lambda: running.stats().ready == 1, "the last one is ready again")
    stats = counted(running)
    assert (stats.leased, stats.dead, stats.scheduled) == (0, 0, 0)


def test_closing_ends_a_loop(running: Engine, all_wait: Callable[[int], set[str]]) -> None:
    consumer = running.consumer()
    with ThreadPoolExecutor(1) as threads:
        looped = threads.submit(list, consumer)
        all_wait(1)
        consumer.close()
        assert looped.result(PROMPT_S) == []


def test_any_thread_closes_a_consumer_of_asyncio(url: str, name: str, all_wait: Callable[[int], set[str]]) -> None:
    async def claim(threads: ThreadPoolExecutor) -> list[Delivery]:
        async with AsyncEngine(url, name=name, shards=SHARDS) as engine:
            consumer = engine.consumer()

            def close() -> None:
                all_wait(1)
                consumer.close()

            closing = threads.submit(close)
            deliveries = await consumer.claim(1, wait=LONG_S)
            closing.result()
            return deliveries

    with ThreadPoolExecutor(1) as threads:
        # a loop in debug mode refuses what only its own thread may do
        assert asyncio.run(claim(threads), debug=True) == []


def test_closing_the_engine_ends_every_claim_that_waits(
    engines: Engines, url: str, name: str, claims: Callable[..., Claim], all_wait: Callable[..., set[str]]
) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS)
    waiting = [claims(engine.consumer()) for _ in range(3)]
    all_wait(1)
    engine.close()
    for claim in waiting:
        with pytest.raises(EngineClosed, match="closed"):
            claim.result(PROMPT_S)
    with pytest.raises(EngineClosed, match="closed"):
        engine.consumer().claim(1, wait=LONG_S)
