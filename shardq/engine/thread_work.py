"""Threads that work for an asyncio engine. A thread finishes its work, or undoes it, also when its caller is cancelled.

The loop's own executor is not used: it drops work that waits for a free thread when the caller is cancelled, and a
program's own work may take all of its threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.subscriber import Subscriber

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Threads:
    """The connections and the thread pool that work beside the loop, however busy that is."""

    driver: Driver
    subscriber: Subscriber
    durable_pushes: ThreadPoolExecutor
    """One thread for each that may borrow connections."""

    @classmethod
    def opened(cls, settings: Settings) -> Threads:
        driver = Driver(settings)
        driver.open()
        pushes = ThreadPoolExecutor(settings.borrowers, thread_name_prefix="shardq-durable")
        return cls(driver, Subscriber(driver), pushes)

    def close(self) -> None:
        self.subscriber.close()
        self.driver.close()
        self.durable_pushes.shutdown(wait=False)


async def make(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Returns what a thread made. When the caller is cancelled, the thread undoes it."""
    future = _start(work, undo)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.cancel() and future.exception() is None:
            # The thread was faster than the cancellation.
            _start(lambda: undo(future.result()), None)
        raise


def start(work: Callable[[], object]) -> asyncio.Future[object]:
    """Starts work in a thread at once. Returns a future of its end; the work goes on when nobody waits for that."""
    return asyncio.wrap_future(_start(work, None))


def _start(work: Callable[[], T], undo: Callable[[T], object] | None) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as exc:  # noqa: BLE001  the future carries it
            with contextlib.suppress(InvalidStateError):
                future.set_exception(exc)
            return
        try:
            future.set_result(result)
        except InvalidStateError:  # The caller was cancelled meanwhile.
            if undo is not None:
                undo(result)

    # A program that ends waits for threads that end something, and not for those that make something.
    threading.Thread(target=run, name="shardq-aside", daemon=undo is not None).start()
    return future
