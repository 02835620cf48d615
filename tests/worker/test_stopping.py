"""How long stopping takes: the grace is for all handlers together, and neither a handler that hangs nor a server that
is dead adds more than a few seconds to it. A second signal takes the grace away.

Bounds are far above what it takes, a second or three, and far below what waiting for each of them, or for the server,
would take.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from cluster.server import Server
from shardq import AsyncEngine, Delivery, Engine, ShardqError, Task
from tests.support.engines import Engines
from tests.support.states import counted, state_of
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Start, Worker
from tests.support.working import Note, Options, notes
from tests.worker.flavours import BLOCKED_S, Flavour, Gate

PROMPT_S = 14.0

HUNG = 6


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_handlers_that_have_timed_out_are_not_waited_for(engines: Engines, running: Engine, flavour: Flavour) -> None:
    """Their tasks are settled. A thread that hangs can't be ended."""
    gate = Gate(flavour)
    worker = running.worker(concurrency=HUNG, max_attempts=1)
    worker.on("", timeout=0.1)(gate.handler)
    with engines.working(worker):
        running.push_many([Task(n) for n in range(HUNG)])
        wait_until(lambda: counted(running).dead == HUNG, "all have timed out")
        began = time.monotonic()
    took = time.monotonic() - began
    gate.open()
    assert took < PROMPT_S
    wait_until(lambda: len(gate.ended) == HUNG, "the handlers have ended")


class Stuck:
    """Middleware that does not come back."""

    def __init__(self) -> None:
        self._gate = Gate("function")
        self.begun = self._gate.begun
        self.open = self._gate.open

    def after(self, delivery: Delivery) -> None:
        self._gate.handler(delivery)


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_hooks_that_hang_are_not_waited_for(engines: Engines, running: Engine) -> None:
    stuck = Stuck()
    worker = running.worker(concurrency=HUNG)
    worker.use(stuck)
    worker.on("")(lambda delivery: None)
    with engines.working(worker):
        running.push_many([Task(n) for n in range(HUNG)])
        wait_until(lambda: len(stuck.begun) == HUNG, "all hang")
        wait_until(lambda: counted(running).leased == 0, "all are acknowledged")
        began = time.monotonic()
    took = time.monotonic() - began
    stuck.open()
    assert took < PROMPT_S


@pytest.mark.parametrize("grace", [0.2, 600], ids=["grace is over", "told twice"])
def test_a_silent_server(engines: Engines, own_server: Server, name: str, flavour: Flavour, grace: float) -> None:
    """What can't be told comes back when its lease runs out."""
    gate = Gate(flavour)
    engine = engines.opened(own_server.url, name=name, shards=2)
    engine.start()
    worker = engine.worker(concurrency=HUNG, grace=grace, lease=2.0)
    worker.on("")(gate.handler)
    with engines.working(worker) as stop:
        ids = engine.push_many([Task(n) for n in range(HUNG)])
        wait_until(lambda: len(gate.begun) == HUNG, "all run")
        own_server.pause()
        began = time.monotonic()
        stop()
    took = time.monotonic() - began
    own_server.resume()
    gate.open()
    assert took < PROMPT_S
    wait_until(lambda: {state_of(engine, id) for id in ids} == {"ready"}, "the tasks come back")
    wait_until(lambda: len(gate.ended) == HUNG, "the handlers have ended")


def test_a_dead_server(engines: Engines, own_server: Server, name: str, flavour: Flavour) -> None:
    gate = Gate(flavour)
    engine = engines.opened(own_server.url, name=name, shards=2)
    engine.start()
    worker = engine.worker(concurrency=HUNG, grace=0.2)
    worker.on("")(gate.handler)
    with engines.working(worker):
        engine.push_many([Task(n) for n in range(HUNG)])
        wait_until(lambda: len(gate.begun) == HUNG, "all run")
        own_server.kill()
        began = time.monotonic()
    took = time.monotonic() - began
    gate.open()
    assert took < PROMPT_S
    wait_until(lambda: len(gate.ended) == HUNG, "the handlers have ended")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_coroutine_that_resists(engines: Engines, running: Engine) -> None:
    """It is cancelled, and goes on."""
    begun, ended = list[str](), list[str]()
    over = False

    async def resist(delivery: Delivery) -> None:
        begun.append(delivery.id)
        while not over:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                ended.append("cancelled")

    worker = running.worker(grace=0.1)
    worker.on("")(resist)
    with engines.working(worker):
        id = running.push("x")
        wait_until(lambda: begun, "it runs")
        began = time.monotonic()
    took = time.monotonic() - began
    over = True
    assert took < PROMPT_S
    assert ended
    assert state_of(running, id) in ("ready", "scheduled")


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_cancelled_twice_it_gives_back_without_grace(url: str, name: str) -> None:
    """The first cancellation begins the grace, as a signal does; none loses what is held."""

    async def main() -> None:
        opened, cancelled = asyncio.Event(), list[str]()

        async def wait(delivery: Delivery) -> None:
            opened.set()
            try:
                await asyncio.sleep(BLOCKED_S)
            except asyncio.CancelledError:
                cancelled.append(delivery.id)
                raise

        async with AsyncEngine(url, name=name, shards=1) as engine:
            await engine.start()
            worker = engine.worker(grace=600)
            worker.on("")(wait)
            id = await engine.push("x")
            run = asyncio.create_task(worker.run())
            await opened.wait()
            run.cancel()
            assert await asyncio.wait([run], timeout=0.2) == (set(), {run})
            assert not cancelled
            run.cancel()
            done, _ = await asyncio.wait([run], timeout=PROMPT_S)
            assert done
            assert run.cancelled()
            assert cancelled == [id]
            task = await engine.get(id)
            assert task is not None
            assert (task.state in ("ready", "scheduled"), task.failures, task.lapses) == (True, 0, 0)

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_signal_ends_it_on_a_loop_and_is_the_programs_again(url: str, name: str, number: signal.Signals) -> None:
    async def main() -> None:
        def own(*_: object) -> None:
            raise AssertionError("the worker is to hear it")

        loop = asyncio.get_running_loop()
        outer = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        for each in outer:
            # the tests may run under nohup
            signal.signal(each, signal.SIG_DFL if each == signal.SIGHUP else own)
        before = {each: signal.getsignal(each) for each in outer}
        try:
            async with AsyncEngine(url, name=name, shards=1) as engine:
                await engine.start()
                worker = engine.worker()
                heard: list[bool] = []

                @worker.on("")
                async def handle(delivery: Delivery) -> None:
                    heard.extend(signal.getsignal(each) != before[each] for each in outer)
                    if all(heard):
                        loop.call_soon(signal.raise_signal, number)
                    else:
                        worker.stop()

                await engine.push("x")
                await worker.run()
                assert heard == [True, True, True]
                assert {each: signal.getsignal(each) for each in outer} == before
        finally:
            for each, handler in outer.items():
                signal.signal(each, handler)

    asyncio.run(main())


@pytest.fixture
def own_handlers() -> Iterator[dict[signal.Signals, Any]]:
    """A program that hears signals itself, such as a web server."""
    own: dict[signal.Signals, Any] = {signal.SIGTERM: str, signal.SIGINT: repr, signal.SIGHUP: signal.SIG_DFL}
    before = {each: signal.signal(each, handler) for each, handler in own.items()}
    yield own
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_signals_are_left_to_a_program_that_hears_them(url: str, name: str, own_handlers: dict[Any, Any]) -> None:
    with Engine(url, name=name, shards=1) as engine:
        engine.start()
        worker, seen = engine.worker(), {}

        @worker.on("")
        def handle(delivery: Delivery) -> None:
            seen.update({each: signal.getsignal(each) for each in own_handlers})
            worker.stop()

        engine.push("x")
        worker.run(signals=False)
    assert seen == own_handlers


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_signals_are_left_to_a_program_of_coroutines(url: str, name: str, own_handlers: dict[Any, Any]) -> None:
    async def main() -> None:
        before = {each: signal.getsignal(each) for each in own_handlers}  # asyncio.run hears SIGINT
        async with AsyncEngine(url, name=name, shards=1) as engine:
            await engine.start()
            worker, seen = engine.worker(), {}

            @worker.on("")
            async def handle(delivery: Delivery) -> None:
                seen.update({each: signal.getsignal(each) for each in own_handlers})
                worker.stop()

            await engine.push("x")
            await worker.run(signals=False)
        assert seen == before

    asyncio.run(main())


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_signal_with_a_callback_of_the_loop_is_not_lost_afterwards(url: str, name: str) -> None:
    """The loop has forgotten the callback: the signal does then what it does by default."""

    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, str)
        async with AsyncEngine(url, name=name, shards=1) as engine:
            worker = engine.worker()
            worker.on("")(str)
            worker.stop()
            await worker.run()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    before = signal.getsignal(signal.SIGTERM)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGTERM, before)


# ---- processes


@pytest.fixture
def own_engine(own_server: Server, name: str) -> Iterator[Engine]:
    with Engine(own_server.url, name=name, shards=1) as engine:
        engine.start()
        yield engine


@pytest.fixture
def start(own_engine: Engine, own_server: Server, name: str, tmp_path: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def begin(**options: Any) -> Worker:
            text = msgspec.json.encode(Options(folder=str(tmp_path), **options)).decode()
            worker = stack.enter_context(Worker("tests.support.working", own_server.url, name, text))
            assert worker.said() == "ready"
            return worker

        yield begin
        (tmp_path / "open").touch()  # for a test that failed before it did


def begun(folder: Path) -> list[Note]:
    return [note for note in notes(folder) if note.kind == "begun"]


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
def test_told_twice_while_its_server_is_silent(
    own_engine: Engine, start: Start, own_server: Server, tmp_path: Path, processes: int, first: signal.Signals
) -> None:
    own_engine.push_many([Task("gate") for _ in range(4)])
    worker = start(grace=600, processes=processes, concurrency=4 // processes)
    wait_until(lambda: len(begun(tmp_path)) == 4, "all run", timeout=SOON_S)
    own_server.pause()
    # not the same one: two that wait to be heard are one
    os.kill(worker.pid, first)
    os.kill(worker.pid, signal.SIGINT if first == signal.SIGTERM else signal.SIGTERM)
    try:
        wait_until(lambda: not worker.running, "it has ended", timeout=PROMPT_S)
    finally:
        own_server.resume()
    assert worker.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_for_the_whole_group_counts_once(
    own_engine: Engine, start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """As systemd stops a service, and a terminal a program: parent and children hear it, and the parent tells them."""
    ids = own_engine.push_many([Task("gate") for _ in range(4)])
    worker = start(processes=2, concurrency=2, grace=600)
    wait_until(lambda: len(begun(tmp_path)) == 4, "all run", timeout=SOON_S)
    os.killpg(worker.pid, number)
    wait_until(lambda: len(list(tmp_path.glob("*.sated"))) == 2, "both claim no more", timeout=SOON_S)
    assert worker.running
    (tmp_path / "open").touch()
    wait_until(lambda: not worker.running, "it has ended", timeout=SOON_S)
    assert worker.stop() == 0
    assert {note.id for note in notes(tmp_path) if note.kind == "done"} == set(ids)
    assert {state_of(own_engine, id) for id in ids} == {"gone"}


def test_stopped_while_its_children_die_again_and_again(
    own_engine: Engine, start: Start, own_server: Server, tmp_path: Path
) -> None:
    """A child ends at once when it can't connect. The parent's pause is for all places together."""
    own_engine.push("gate")
    worker = start(processes=40, concurrency=1)
    wait_until(lambda: begun(tmp_path), "it runs", timeout=SOON_S)
    for child in psutil.Process(worker.pid).children():
        child.kill()
    os.kill(worker.pid, signal.SIGTERM)
    wait_until(lambda: not worker.running, "it has ended", timeout=PROMPT_S)
    assert worker.stop() == 0


def test_a_worker_that_runs_is_not_run_again(engines: Engines, running: Engine) -> None:
    worker = running.worker()
    worker.on("")(lambda delivery: None)
    with engines.working(worker):
        wait_until(lambda: worker.healthy, "it runs")
        with pytest.raises(ShardqError, match="this worker runs already, and runs once at a time; give it more"):
            engines.ran(worker)
        assert worker.healthy
        id = running.push("x")
        wait_until(lambda: running.get(id) is None, "it goes on")
    with engines.working(worker):
        id = running.push("y")
        wait_until(lambda: running.get(id) is None, "it may run again")
