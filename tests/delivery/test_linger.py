"""Linger: the wait for a batch to fill comes before the claim, is shared by a fleet, and ends with the worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from shardq import Batch, Engine, Task
from shardq.core.operation import run
from shardq.delivery.linger import Linger
from shardq.engine.access import EngineAccess
from shardq.worker.base import plan_of
from tests.support.engines import Engines
from tests.support.states import counted, make_ready
from tests.support.waiting import wait_until


class Calls:
    """The calls of a handler of batches, and when each began."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.at: list[float] = []

    def __call__(self, batch: Batch[Any]) -> None:
        self.at.append(time.monotonic())
        self.sizes.append(len(batch))

    @property
    def total(self) -> int:
        return sum(self.sizes)


def test_it_waits_for_others_and_leases_nothing_meanwhile(engines: Engines, running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    worker.on("events", batch=100, linger=1.5)(calls)
    with engines.working(worker):
        began = time.monotonic()
        for n in range(10):
            running.push(n, topic="events")
            time.sleep(0.05)
        assert calls.sizes == []
        assert counted(running).leased == 0
        wait_until(lambda: calls.total == 10, "they are handled")
    assert calls.sizes == [10]
    assert calls.at[0] - began > 1.3, "the first of them has waited for so long, less what it took to become ready"


def test_a_full_batch_waits_for_nothing(engines: Engines, running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    worker.on("events", batch=20, linger=60)(calls)
    with engines.working(worker):
        running.push_many([Task(n, topic="events") for n in range(40)])
        wait_until(lambda: calls.total == 40, "they are handled, though nobody waits a minute", timeout=30)
    assert max(calls.sizes) == 20


def test_a_task_with_a_key_never_lingers(engines: Engines, running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    worker.on("events", batch=20, linger=60)(calls)
    with engines.working(worker):
        running.push_many([Task(n, topic="events", key="customer-7") for n in range(5)])
        wait_until(lambda: calls.total == 5, "they are handled one after the other", timeout=30)
    assert calls.sizes == [1] * 5


def test_its_end_is_at_once(engines: Engines, running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    worker.on("events", batch=20, linger=60)(calls)
    make_ready(running, 3, topic="events")
    began = time.monotonic()
    with engines.working(worker):
        wait_until(lambda: worker.healthy, "it runs")
        time.sleep(0.5)  # so that it looks at the list
        ending = time.monotonic()
    assert time.monotonic() - ending < 5
    assert calls.sizes == []
    stats = counted(running)
    assert (stats.ready, stats.leased, stats.scheduled) == (3, 0, 0), "nothing was claimed"
    assert began < ending


@pytest.mark.slow
def test_a_fleet_shares_the_wait(engines: Engines, running: Engine, url: str, name: str) -> None:
    """By waits of their own, each of them would take the few that had come since another took the rest."""
    calls = Calls()
    stopped = threading.Event()

    def push() -> None:
        for n in range(400):
            running.push(n, topic="events")
            if stopped.wait(0.005):
                return

    with ExitStack() as stack:
        for _ in range(6):
            worker = engines.opened(url, name=name).worker()
            worker.on("events", batch=500, linger=0.5)(calls)
            stack.enter_context(engines.working(worker))
        pushing = threading.Thread(target=push)
        began = time.monotonic()
        pushing.start()
        wait_until(lambda: calls.total == 400, "all are handled")
        waits = (time.monotonic() - began) / 0.5
        stopped.set()
        pushing.join()
    assert len(calls.sizes) < 5 + 4 * waits, (calls.sizes, waits)


@pytest.mark.slow
def test_who_lingers_and_dies_leaves_it_to_others(engines: Engines, running: Engine, url: str, name: str) -> None:
    """A worker that stops while it lingers has told nobody of the list."""
    first, second = Calls(), Calls()
    early = engines.opened(url, name=name).worker()
    early.on("events", batch=500, linger=3)(first)
    late = engines.opened(url, name=name).worker()
    late.on("events", batch=500, linger=3)(second)
    with engines.working(late):
        with engines.working(early):
            wait_until(lambda: early.healthy and late.healthy, "both run")
            running.push_many([Task(n, topic="events") for n in range(5)])
            wait_until(lambda: counted(running).ready == 5, "they are ready")
        wait_until(lambda: second.total == 5, "the other has them", timeout=40)
    assert first.total == 0


@pytest.mark.slow
def test_a_paused_topic_and_a_limited_one(engines: Engines, running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    worker.on("events", batch=20, linger=0.2)(calls)
    running.pause("events")
    with engines.working(worker):
        running.push_many([Task(n, topic="events") for n in range(5)])
        time.sleep(1)
        assert calls.total == 0
        running.limit("events", rate=5)
        running.resume("events")
        wait_until(lambda: calls.total == 5, "they are handled as the limit allows")


@pytest.mark.parametrize("cut", [lambda running: running.resize(8)], ids=["resize"])
def test_it_goes_on_after_a_resize(engines: Engines, running: Engine, cut: Callable[[Engine], Any]) -> None:
    calls, worker = Calls(), running.worker()
    worker.on("events", batch=20, linger=0.2)(calls)
    with engines.working(worker):
        running.push_many([Task(n, topic="events") for n in range(30)])
        engines.done(cut(running))
        running.push_many([Task(n, topic="events") for n in range(30)])
        wait_until(lambda: calls.total == 60, "all are handled")


def test_the_wait_is_that_of_the_list_and_not_of_who_looks(url: str, name: str) -> None:
    """Between two looks another has taken all, and a task has come since."""
    with Engine(url, name=name, shards=1) as engine:
        engine.start()
        worker = engine.worker()
        worker.on("events", batch=10, linger=5)(lambda batch: None)
        internals = EngineAccess(engine)
        driver = internals.open_driver()
        linger = Linger(driver, internals.planned_claims(plan_of(worker)), lambda _: None, size=10, linger_s=5)  # type: ignore[arg-type, return-value]  # it waits for nothing here

        def left_s(now: float) -> float | None:
            return run(driver, linger._left_s(now), 10.0)

        assert left_s(100.0) is None
        make_ready(engine, 1, topic="events")
        assert left_s(100.0) == 5.0
        assert left_s(103.0) == 2.0
        consumer = engine.consumer("events")
        consumer.ack(consumer.claim(1, wait=10))
        make_ready(engine, 1, topic="events")
        assert left_s(104.0) == 5.0, "another wait has begun"
        assert left_s(109.0) == 0.0
