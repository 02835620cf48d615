"""Work that the consumers of one asyncio engine have to finish although nobody awaits it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

END_S = 2.0
"""Time for all of it, when the engine is closed. A trip to a server that lives takes a part of that; what a dead one
was not told comes back when its leases have run out."""


class Endings:
    """Tasks that go on when their caller is cancelled. ``close`` waits for them, for a while."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits some work. A caller who is cancelled meanwhile leaves at once, and the work is finished without it."""
        task = asyncio.create_task(work)
        self.add(task)
        return await asyncio.shield(task)

    async def close(self) -> None:
        # a loop over a consumer that was left just now is closed by asyncio, in a task of its own: two steps from here
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
