"""What a worker calls before its first task and after its last."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import pytest

from shardq import AsyncEngine, AsyncWorker, Delivery, Engine, Worker
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.states import counted
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


class Calls:
    """What was called, in order; the loop of each coroutine."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()

    def function(self, name: str) -> Any:
        return lambda: self.order.append(name)

    def coroutine(self, name: str) -> Any:
        async def call() -> None:
            await asyncio.sleep(0)
            self.loops.add(asyncio.get_running_loop())
            self.order.append(name)

        return call

    def register(self, worker: Worker | AsyncWorker) -> None:
        worker.on_startup(self.function("first"))
        worker.on_startup(self.coroutine("second"))
        worker.on_shutdown(self.coroutine("last"))
        worker.on_shutdown(self.function("last but one"))

        @worker.on("")
        async def handle(delivery: Delivery) -> None:
            self.loops.add(asyncio.get_running_loop())
            self.order.append("task")


ORDER = ["first", "second", "task", "last but one", "last"]


def test_they_are_called_around_all_tasks_on_the_loop_of_the_handlers(engines: Engines, running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    calls.register(worker)
    running.push(1)
    with engines.working(worker):
        wait_until(lambda: "task" in calls.order, "it is handled")
    assert calls.order == ORDER
    assert len(calls.loops) == 1


def test_again_in_a_second_run(engines: Engines, running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    calls.register(worker)
    for number in (1, 2):
        running.push(number)
        with engines.working(worker):
            wait_until(lambda: calls.order.count("task") == number, "it is handled")  # noqa: B023  called at once
    assert calls.order == 2 * ORDER


@pytest.mark.parametrize("end", ["stop", "cancel"])
def test_on_the_loop_of_an_async_engine(url: str, name: str, end: str) -> None:
    calls = Calls()

    async def main() -> asyncio.AbstractEventLoop:
        async with AsyncEngine(url, name=name) as engine:
            await engine.start()
            worker = engine.worker()
            calls.register(worker)
            await engine.push(1)
            run = asyncio.create_task(worker.run(signals=False))
            await asyncio.to_thread(wait_until, lambda: "task" in calls.order, "it is handled")
            if end == "stop":
                worker.stop()
                await run
            else:
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
        return asyncio.get_running_loop()

    assert asyncio.run(main()) in calls.loops
    assert calls.order == ORDER
    assert len(calls.loops) == 1


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_start_that_fails_ends_the_run_and_claims_nothing(engines: Engines, running: Engine, kind: str) -> None:
    calls, worker = Calls(), running.worker()
    calls.register(worker)

    def fail() -> None:
        raise ConnectionError("no database")

    async def fail_later() -> None:
        fail()

    worker.on_startup(fail if kind == "function" else fail_later)
    running.push(1)
    with pytest.raises(ConnectionError, match="no database"):
        worker.run(signals=False)
    assert calls.order == ["first", "second"], "nothing was begun, so there is nothing to end"
    wait_until(lambda: counted(running).ready == 1, "the task is where it was")


def test_an_end_that_fails_is_logged_and_the_others_are_called(
    engines: Engines, running: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    calls, worker = Calls(), running.worker()
    calls.register(worker)

    @worker.on_shutdown
    async def fail() -> None:
        raise OSError("it was closed before")

    with engines.working(worker):
        running.push(1)
        wait_until(lambda: "task" in calls.order, "it is handled")
    assert calls.order == ORDER
    [told] = [record for record in caplog.records if "on_shutdown" in record.message]
    assert "fail" in told.message
    assert told.exc_info


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_a_worker_that_is_stopped_while_it_starts_handles_nothing(running: Engine) -> None:
    calls, worker = Calls(), running.worker()
    calls.register(worker)
    worker.on_startup(worker.stop)
    running.push(1)
    worker.run(signals=False)
    assert calls.order == ["first", "second", "last but one", "last"]


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_a_second_stop_cancels_a_coroutine_that_hangs(running: Engine) -> None:
    worker, hangs = running.worker(), threading.Event()
    worker.on("")(lambda delivery: None)

    @worker.on_shutdown
    async def hang() -> None:
        hangs.set()
        await asyncio.sleep(600)

    run = threading.Thread(target=worker.run, kwargs={"signals": False})
    run.start()
    time.sleep(0.1)
    worker.stop()
    assert hangs.wait(30)
    worker.stop()
    run.join(30)
    assert not run.is_alive()


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_each_process_calls_them(running: Engine, tmp_path: Any) -> None:
    worker: Worker = running.worker(processes=2)
    worker.on("")(lambda delivery: None)
    worker.on_startup(lambda: (tmp_path / f"begun-{os.getpid()}").touch())
    worker.on_shutdown(lambda: (tmp_path / f"ended-{os.getpid()}").touch())
    run = threading.Thread(target=worker.run, kwargs={"signals": False})
    run.start()
    try:
        wait_until(lambda: len(list(tmp_path.glob("begun-*"))) == 2, "both have begun")
    finally:
        worker.stop()
        run.join()
    begun, ended = ({path.name[6:] for path in tmp_path.glob(f"{word}-*")} for word in ("begun", "ended"))
    assert begun == ended
    assert str(os.getpid()) not in begun


def test_what_can_not_be_registered(running: Engine) -> None:
    worker = running.worker()
    for wrong, said in (
        (7, "give a function or a coroutine function"),
        (lambda app: None, "it is called without arguments"),
    ):
        for register in (worker.on_startup, worker.on_shutdown):
            with pytest.raises(InvalidOption, match=said):
                register(wrong)  # type: ignore[type-var]
