"""Runs a worker until it is told to stop.

The worker runs in a thread of its own, so that it hears no signals: the main thread does, or the process that watches
this one. Both kinds of worker are told by ``stop()``, once to end and once more to hurry.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from shardq.cli.work.target import engine_behind
from shardq.worker import Worker
from shardq.worker.signal_event import LOOK_S, SignalSafeEvent

if TYPE_CHECKING:
    from shardq.worker import AsyncWorker


def serve(worker: Worker | AsyncWorker, stop: SignalSafeEvent, hurry: SignalSafeEvent) -> None:
    """Runs the worker until ``stop``, and without its grace from ``hurry`` on; then closes its engine."""
    run, tell = _of_threads(worker) if isinstance(worker, Worker) else _of_asyncio(worker)
    failures: list[BaseException] = []

    def caught() -> None:
        try:
            run()
        except BaseException as exc:  # noqa: BLE001  raised again in the main thread
            failures.append(exc)

    thread = threading.Thread(target=caught, name="shardq-work", daemon=True)
    thread.start()
    for event in (stop, hurry):
        while thread.is_alive() and not event.wait(LOOK_S):
            pass
        if thread.is_alive():
            tell()
    while thread.is_alive():
        thread.join(LOOK_S)
    if failures:
        raise failures[0]


def _of_threads(worker: Worker) -> tuple[Callable[[], None], Callable[[], None]]:
    def run() -> None:
        try:
            worker.run()
        finally:
            engine_behind(worker).close()

    return run, worker.stop


def _of_asyncio(worker: AsyncWorker) -> tuple[Callable[[], None], Callable[[], None]]:
    import asyncio  # here: no other command needs it

    # Made here: it takes calls before it runs.
    loop = asyncio.new_event_loop()

    async def run() -> None:
        try:
            await worker.run()
        finally:
            closing = engine_behind(worker).close()
            assert closing is not None, "an asyncio worker has an AsyncEngine"
            await closing

    def run_loop() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    def tell() -> None:
        with contextlib.suppress(RuntimeError):  # it has just ended
            loop.call_soon_threadsafe(worker.stop)

    return run_loop, tell
