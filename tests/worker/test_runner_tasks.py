"""Coroutines that wait for nothing share tasks of asyncio; one that waits has its task for itself."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from shardq import Delivery, Engine, Task
from tests.support.engines import Engines
from tests.support.states import counted
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)

MANY = 200


def test_those_that_wait_for_nothing_share_tasks(engines: Engines, running: Engine) -> None:
    tasks: set[asyncio.Task[Any] | None] = set()
    calls: list[Any] = []

    async def quick(delivery: Delivery) -> None:
        tasks.add(asyncio.current_task())
        calls.append(delivery.payload)

    running.push_many([Task(n) for n in range(MANY)])
    wait_until(lambda: counted(running).ready == MANY, "all are ready")
    worker = running.worker()
    worker.on("")(quick)
    with engines.working(worker):
        wait_until(lambda: counted(running).ready + counted(running).leased == 0, "all are done")
    assert sorted(calls) == list(range(MANY))
    assert None not in tasks
    assert len(tasks) < MANY / 2


def test_one_that_waits_shares_its_task_with_nothing_after_it(engines: Engines, running: Engine) -> None:
    tasks: list[asyncio.Task[Any]] = []
    ended: list[Any] = []

    async def waiting(delivery: Delivery) -> None:
        task = asyncio.current_task()
        assert task is not None
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await asyncio.sleep(0)
        assert asyncio.current_task() is task, "it stays in its task"
        tasks.append(task)
        task.add_done_callback(lambda _: ended.append(delivery.payload))

    running.push_many([Task(n) for n in range(MANY)])
    worker = running.worker()
    worker.on("")(waiting)
    with engines.working(worker):
        wait_until(lambda: len(ended) == MANY, "the tasks of all have ended")
    assert len(set(tasks)) == MANY
    assert sorted(ended) == list(range(MANY))


def test_one_that_cancels_its_task_leaves_the_next_alone(engines: Engines, running: Engine) -> None:
    ended: list[Any] = []

    async def cancelling(delivery: Delivery) -> None:
        if delivery.payload == "quick":
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # it runs in one
        else:
            await asyncio.sleep(0)
        ended.append(delivery.payload)

    running.push_many([Task("quick" if n % 2 else "waiting") for n in range(20)])
    wait_until(lambda: counted(running).ready == 20, "all are ready")
    worker = running.worker(concurrency=1)
    worker.on("")(cancelling)
    with engines.working(worker):
        wait_until(lambda: counted(running).ready + counted(running).leased == 0, "all are done")
    assert sorted(ended) == ["quick"] * 10 + ["waiting"] * 10, "none has failed, and been tried again"


def test_the_loop_has_its_turns_between_them(engines: Engines, running: Engine) -> None:
    """Each holds the loop for longer than all of them may together."""
    turns: list[int] = []
    handled: list[Any] = []

    async def busy(delivery: Delivery) -> None:
        if not handled:
            asyncio.get_running_loop().call_soon(lambda: turns.append(len(handled)))
        time.sleep(0.002)  # noqa: ASYNC251  it is what the test is about
        handled.append(delivery.payload)

    running.push_many([Task(n) for n in range(50)])
    wait_until(lambda: counted(running).ready == 50, "all are ready")
    worker = running.worker(concurrency=4)
    worker.on("")(busy)
    with engines.working(worker):
        wait_until(lambda: len(handled) == 50, "all are handled")
    assert turns
    assert turns[0] <= 4
