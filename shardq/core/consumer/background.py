"""Work that the consumers of one asyncio engine must finish although nobody awaits it any more."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

END_S = 2.0
"""Time for all of it when the engine is closed. A live server needs a part of that; leases that a dead one was not told
of run out.
"""


class Holder(Protocol):
    def release(self) -> None: ...


class BackgroundTasks:
    """Tasks that go on when their caller is cancelled. ``close`` waits for them, within bounds."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        """Consumers that claim ahead. ``close`` has them give back what they hold."""

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits some work. A caller who is cancelled meanwhile leaves at once, and the work goes on without it."""
        task = asyncio.create_task(work)
        self.add(task)
        return await asyncio.shield(task)

    async def close(self) -> None:
        for holder in list(self.holders):
            holder.release()
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
