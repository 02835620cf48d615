"""How pages ask the engine: an engine for threads in a thread, one for asyncio in the loop.

Both are taken, because the dashboard is mounted in programs of both kinds, and a second engine of its own would not
know the pollers, workers and relays of the program, of which ``health()`` tells. A page is written once: the twins have
the same names, and what an AsyncEngine returns is awaited here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from anyio import CapacityLimiter, to_thread

from shardq.engine.sync import Engine

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine

T = TypeVar("T")

AT_ONCE = 8
"""Threads that wait for servers at once. They are the dashboard's own: a silent server takes none from the program that
it is mounted in.
"""


class Asker:
    """Calls the engine.

    >>> page = await ask(lambda engine: engine.tasks(state="dead", limit=100))
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine
        self._limiter: CapacityLimiter | None = None

    async def __call__(self, call: Callable[[Engine], T]) -> T:
        if isinstance(self._engine, Engine):
            if self._limiter is None:
                self._limiter = CapacityLimiter(AT_ONCE)
            return await to_thread.run_sync(call, self._engine, limiter=self._limiter)
        answer = call(cast(Engine, self._engine))
        return cast(T, await answer) if inspect.isawaitable(answer) else answer
