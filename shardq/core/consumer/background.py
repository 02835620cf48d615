"""An event that threads set for a loop, and tasks that go on without their caller: for the consumers of asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import weakref
from collections.abc import Coroutine
from typing import Any, TypeVar

from shardq.core.consumer.prefetch import STALE_S, Ahead

T = TypeVar("T")

END_S = 2.0
"""Time for all of it when the engine is closed. A live server needs a part of that; leases that a dead one was not told
of run out.
"""


class Event:
    """An event of the running loop. Threads set it: they serve subscriber connections."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        # A loop that has ended has no waiter left.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float, /) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


class BackgroundTasks:
    """Tasks that go on when their caller is cancelled. ``close`` waits for them, within bounds."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.ahead: weakref.WeakSet[Ahead[Any]] = weakref.WeakSet()
        """The claims ahead of consumers. ``close`` has them given back."""
        self._watched = set[Ahead[Any]]()

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits some work. A caller who is cancelled meanwhile leaves at once, and the work goes on without it."""
        task = asyncio.create_task(work)
        self.add(task)
        return await asyncio.shield(task)

    def watch(self, ahead: Ahead[Any]) -> None:
        """Gives stale deliveries back from now on, as long as anything is held."""
        if ahead not in self._watched:
            self._watched.add(ahead)
            asyncio.get_running_loop().call_later(STALE_S / 2, self._look, ahead)

    def _look(self, ahead: Ahead[Any]) -> None:
        self._watched.discard(ahead)
        ahead.release(time.monotonic())
        if ahead.any:
            self.watch(ahead)

    async def close(self) -> None:
        for ahead in list(self.ahead):
            ahead.release(math.inf)
        # asyncio closes a loop over a consumer that was just left in a task of its own: two steps from here.
        for _ in range(2):
            await asyncio.sleep(0)
        loop = asyncio.get_running_loop()
        until = loop.time() + END_S
        while self._tasks and loop.time() < until:
            await asyncio.wait(self._tasks, timeout=until - loop.time())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
