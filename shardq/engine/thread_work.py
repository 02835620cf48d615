"""Threads that work for an asyncio engine. A thread finishes its work, or undoes it, also when its caller is cancelled.

The loop's own executor is not used: it drops work that waits for a free thread when the caller is cancelled, and a
program's own work may take all of its threads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from shardq.core.drivers.sync import Driver
from shardq.core.subscriber import Subscriber
from shardq.core.threads import begun

T = TypeVar("T")

NAME = "shardq-aside"
"""The name of every such thread."""


@dataclass(frozen=True, slots=True)
class Threads:
    """The connections and the thread pool that work beside the loop, however busy that is."""

    driver: Driver
    subscriber: Subscriber
    durable_pushes: ThreadPoolExecutor
    """One thread for each that may borrow connections."""

    @classmethod
    def opened(cls, driver: Driver, deadline: float) -> Threads:
        driver.open(deadline)
        pushes = ThreadPoolExecutor(driver.settings.borrowers, thread_name_prefix="shardq-durable")
        return cls(driver, Subscriber(driver), pushes)

    def close(self) -> None:
        self.subscriber.close()
        self.driver.close()
        self.durable_pushes.shutdown(wait=False)


async def make(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Returns what a thread made. When the caller is cancelled, it is undone in a thread as soon as it is made."""
    made = begun(work, NAME)
    try:
        return await asyncio.wrap_future(made)
    except asyncio.CancelledError:
        made.add_done_callback(partial(_undo, undo))
        raise


def _undo(undo: Callable[[T], object], made: Future[T]) -> None:
    if made.exception() is None:
        begun(lambda: undo(made.result()), NAME, daemon=False)


def start(work: Callable[[], object]) -> asyncio.Future[object]:
    """Starts work in a thread at once. Returns a future of its end; the work goes on when nobody waits for that, and a
    program that ends waits for it: it ends something.
    """
    return asyncio.wrap_future(begun(work, NAME, daemon=False))
