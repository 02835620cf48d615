"""The cost of waiting: a fleet of idle consumers, an idle worker, and a thousand sleeping coroutines."""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from typing import Any

import psutil
import pytest

from shardq import Delivery, Engine, Task
from shardq.core.calls import consume
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.traffic import script_calls, unfinished, waiting, wake_ups
from tests.support.waiting import wait_until
from tests.support.workers import Worker

SHARDS = 16


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_fleet_may_grow(url: str, name: str) -> None:
    """300 idle consumers in three processes: two tasks a second are each taken by one, who alone is woken."""
    tasks = 12
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS))
        servers = stack.enter_context(Servers(url))
        engine.start()
        workers = [stack.enter_context(Worker("tests.support.waiting_consumers", url, name, 100)) for _ in range(3)]
        for worker in workers:
            assert worker.said() == "ready"
        processes = wait_until(
            lambda: names if len(names := waiting(servers, name, SHARDS)) == 3 else set(), "all wait", timeout=20
        )
        wait_until(lambda: _calls_of_a_moment(servers) <= 1, "nobody but the heartbeat asks any more")
        with wake_ups(servers, engine, processes) as wakes:
            before, began = script_calls(servers), time.monotonic()
            for n in range(tasks):
                engine.push(n)
                # sooner than any look that nobody woke it for: three processes take one in 24 s at least
                wait_until(lambda: not unfinished(servers, name, SHARDS), "it is handled", timeout=15)
                time.sleep(0.5 - time.time() % 0.5)  # the pace: one in every half second of the clock
            calls, seconds = script_calls(servers) - before, time.monotonic() - began
            heard = wakes.look().heard
    assert len(heard) == tasks
    # and a look that nobody woke it for may fall into this time, one of each process
    assert calls <= 10 * max(tasks, seconds) + 3 * SHARDS


def _calls_of_a_moment(servers: Servers) -> int:
    before = script_calls(servers)
    time.sleep(0.3)  # a span to measure in
    return script_calls(servers) - before


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_due_task_of_an_idle_worker(
    engines: Engines, url: str, name: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claims: one gets it, and one registers again. On a busy machine some tasks take one more."""
    claims, make = 0, consume.claim

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal claims
        claims += 1
        return make(*args, **options)

    monkeypatch.setattr(consume, "claim", counted)
    engine = engines.opened(url, name=name, shards=SHARDS)
    engine.start()
    worker = engine.worker()
    worker.on("")(print)

    def is_idle() -> bool:
        return not unfinished(servers, name, SHARDS) and bool(waiting(servers, name, SHARDS))

    spent = list[int]()
    with engines.working(worker):
        wait_until(is_idle, "it waits")
        while 2 not in spent and len(spent) < 20:
            before = claims
            engine.push(None)
            wait_until(is_idle, "it is handled, and the worker waits again")
            spent.append(claims - before)
    assert 2 in spent, spent


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_thousand_slow_coroutines_in_flight(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=SHARDS)
    engine.start()
    running = most = done = 0
    sizes: list[int] = []
    full = asyncio.Event()

    async def sleep(delivery: Delivery) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        if running == 1000:
            full.set()
        await full.wait()  # the first ones: until every place is taken
        await asyncio.sleep(0.1)
        running -= 1
        done += 1
        if done % 1000 == 0:
            sizes.append(psutil.Process().memory_info().rss)

    worker = engine.worker(concurrency=1000)
    worker.on("")(sleep)
    engine.push_many([Task(n) for n in range(15_000)])
    with engines.working(worker):
        wait_until(lambda: done == 15_000, "all are handled", timeout=90)
    assert most == 1000
    # after the first rounds, which fill pools and caches
    assert max(sizes[5:]) - sizes[4] < 16 << 20
