"""The clock for asyncio: how handlers are run, and what a push does inline. Its twin for threads is ``sync``."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from shardq.core import forks
from shardq.core.consumer.policy import Retry
from shardq.core.drivers.aio import AsyncDriver
from shardq.engine.parts import Parts, async_driver_of
from shardq.testing.adoption import Adopted
from shardq.testing.clock_aio import AsyncClockCommands
from shardq.testing.sync import FAILURES
from shardq.testing.virtual_parts import AsyncRealParts, AsyncVirtualParts
from shardq.worker.functions import check_result
from shardq.worker.job import Job

if TYPE_CHECKING:
    from shardq.engine.aio import AsyncEngine


class AsyncClock(AsyncClockCommands):
    """A clock that a test on asyncio moves, and the engines that go by it.

    The pytest plugin makes one for each test (``shardq_async_clock``); in another framework make it yourself:

    >>> async with shardq.testing.AsyncClock(url) as clock:
    ...     engine = clock.adopt(shardq.AsyncEngine())
    ...     id = await engine.push("hi", delay=86_400)
    ...     deliveries = await clock.advance(days=1)
    """

    def __init__(
        self,
        url: str,
        *,
        start: dt.datetime | None = None,
        real_time: bool = False,
        too_long: Callable[[float], None] | None = None,
    ) -> None:
        super().__init__(url, start=start, real_time=real_time, too_long=too_long)
        self._lock = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop that an engine was opened in last."""
        self._at_its_end: AsyncIterator[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def close_from_outside(self) -> None:
        """Closes where no loop runs, as in a fixture that is no coroutine: in the loop that the engines are open in, or
        in a new one if that has ended.

        >>> clock.close_from_outside()
        """
        if self._loop is not None and not self._loop.is_closed():
            self._loop.run_until_complete(self.close())
        elif self._adopted:
            asyncio.run(self.close())

    def _ended(self) -> None:
        pass

    def _parts(self, adopted: Adopted[AsyncEngine]) -> Parts:
        if self.real_time:
            return AsyncRealParts(self._entered)
        return AsyncVirtualParts(adopted.pollers, self._entered, self._pushed)

    async def _entered(self) -> None:
        """Sees to it that the engines are closed when the running loop ends."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._at_its_end = loop, self._until_it_ends()
            await anext(self._at_its_end)

    async def _until_it_ends(self) -> AsyncIterator[None]:
        # Loops close their generators before they end: later nobody could close connections.
        try:
            yield
        finally:
            for adopted in self._adopted:
                await adopted.engine.close()
                adopted.rest()

    async def _opened(self, engine: AsyncEngine) -> AsyncDriver:
        return await async_driver_of(engine)

    async def _sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _pushed(self) -> None:
        """Handles what was pushed inline. What a handler pushes is handled when it has ended."""
        if any(bound.inline for bound in self._bound):
            if self._handling:
                self._again = True
                return
            async with self._lock:
                await self._catch_up([], inline=True)

    async def _failure(self, job: Job) -> BaseException | None:
        failure: BaseException | None = None
        depth = forks.depth()
        loop = asyncio.get_running_loop()
        try:
            if job.is_coroutine:
                # In an empty context, as in a worker.
                result = await self._awaited(job)
            else:
                call = partial(contextvars.Context().run, job.handler.run, job.delivery)
                result = await loop.run_in_executor(None, call)
            if result is not None:
                check_result(result, job.name, "handler")
        except FAILURES as exc:
            if isinstance(exc, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
                raise  # the test is cancelled, not the handler
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        return failure

    async def _awaited(self, job: Job) -> Any:
        limit = job.handler.timeout

        async def run() -> Any:
            return await job.handler.run(job.delivery)

        task = asyncio.get_running_loop().create_task(run(), context=contextvars.Context())
        try:
            async with asyncio.timeout(limit) as timeout:
                return await task
        except TimeoutError:
            if not timeout.expired():
                raise
            raise Retry(reason=f"timed out after {limit:g} s") from None
