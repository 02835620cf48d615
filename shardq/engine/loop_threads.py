"""Threads beside an event loop: what an ``AsyncEngine`` has run there, and how it awaits that. Used by ``aio``.

They are threads of its own, not the loop's executor: that drops work that waits for a free thread when the caller is
cancelled, and a program's own work may take all of its threads.
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

ASIDE = "shardq-aside"


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


async def made_in_thread(work: Callable[[], T], undo: Callable[[T], object]) -> T:
    """Returns what a thread made. When the caller is cancelled, it is undone in a thread as soon as it is made."""
    made = begun(work, ASIDE)
    try:
        return await asyncio.wrap_future(made)
    except asyncio.CancelledError:
        made.add_done_callback(partial(_undo, undo))
        raise


def _undo(undo: Callable[[T], object], made: Future[T]) -> None:
    if made.exception() is None:
        begun(lambda: undo(made.result()), ASIDE, daemon=False)


def ended_in_thread(work: Callable[[], object]) -> asyncio.Future[object]:
    """Runs ``work`` in a non-daemon thread, begun at once; cancelling the future does not stop it."""
    return asyncio.wrap_future(begun(work, ASIDE, daemon=False))
