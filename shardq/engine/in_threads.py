"""Work that an asyncio engine leaves to threads. It is done to its end, or undone, whatever becomes of its caller.

Not by the loop's executor: what waits there for a free thread is dropped when its caller is cancelled, and a program's
own work may take all of its threads.
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
    """What works in threads, whatever the loop is busy with."""

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


async def made(make: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Has a thread make something. When the caller is cancelled nothing of it stays: the thread undoes it."""
    future = _begun(make, undo)
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        if not future.cancel() and future.exception() is None:
            # it was made, and the news of it under way
            _begun(lambda: undo(future.result()), None)
        raise


def ending(work: Callable[[], object]) -> asyncio.Future[object]:
    """Begins it at once; done when the thread has done it, which it does also when nobody waits any more."""
    return asyncio.wrap_future(_begun(work, None))


def _begun(work: Callable[[], T], undo: Callable[[T], object] | None) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as exc:  # noqa: BLE001  whoever waits learns of it
            with contextlib.suppress(InvalidStateError):
                future.set_exception(exc)
            return
        try:
            future.set_result(result)
        except InvalidStateError:  # cancelled meanwhile
            if undo is not None:
                undo(result)

    # the end of a program waits for what ends, and not for what is being made
    threading.Thread(target=run, name="shardq-aside", daemon=undo is not None).start()
    return future
