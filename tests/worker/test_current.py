"""``shardq.current()``: the delivery of the handler that runs, wherever it is asked."""

from __future__ import annotations

import asyncio
import threading

import pytest

import shardq
from shardq import Delivery, Engine
from tests.support.engines import Engines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


class Asked:
    """The ids that were told, by place."""

    def __init__(self) -> None:
        self.at: dict[str, str] = {}

    def here(self, place: str) -> None:
        self.at[place] = shardq.current().id

    def before(self, delivery: Delivery) -> None:
        self.here("before")

    def after(self, delivery: Delivery) -> None:
        self.here("after")


def test_in_a_function_its_hooks_and_what_it_calls(engines: Engines, running: Engine) -> None:
    asked, worker = Asked(), running.worker()
    worker.use(asked)

    def deeper() -> None:
        asked.here("deeper")

    @worker.task(name="send")
    def send(order: int) -> None:
        asked.here("function")
        deeper()

        def alone() -> None:
            with pytest.raises(LookupError, match="no task is handled here"):
                shardq.current()
            asked.at["thread"] = "none"

        thread = threading.Thread(target=alone)
        thread.start()
        thread.join()

    with engines.working(worker):
        id = engines.done(send.push(7))
        wait_until(lambda: "after" in asked.at, "it is handled")
    assert asked.at == dict.fromkeys(("before", "function", "deeper", "after"), id) | {"thread": "none"}


def test_in_a_coroutine_its_tasks_and_threads(engines: Engines, running: Engine) -> None:
    asked, worker = Asked(), running.worker()
    worker.use(asked)

    @worker.on("")
    async def handle(delivery: Delivery) -> None:
        await asyncio.sleep(0.01)
        asked.here("coroutine")
        await asyncio.to_thread(asked.here, "to_thread")

        async def part() -> None:
            asked.here("task")

        await asyncio.create_task(part())

    with engines.working(worker):
        id = running.push(1)
        wait_until(lambda: "after" in asked.at, "it is handled")
    assert asked.at == dict.fromkeys(("before", "coroutine", "to_thread", "task", "after"), id)


def test_each_has_its_own(engines: Engines, running: Engine) -> None:
    told: list[tuple[str, str]] = []
    worker = running.worker(concurrency=8)

    @worker.on("")
    async def handle(delivery: Delivery) -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
            told.append((delivery.id, shardq.current().id))

    with engines.working(worker):
        running.push_many([shardq.Task(n) for n in range(50)])
        wait_until(lambda: len(told) == 150, "all are handled")
    assert all(given == found for given, found in told)


def test_outside_of_a_handler(running: Engine) -> None:
    with pytest.raises(LookupError, match=r"no task is handled here: shardq\.current\(\) is for"):
        shardq.current()
