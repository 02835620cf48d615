"""The clock for threads: how handlers are run, and what a push does inline. Its twin for asyncio is ``aio``."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

from shardq.core import forks
from shardq.core.consumer.policy import Retry
from shardq.core.drivers.sync import Driver
from shardq.engine.parts import Parts, driver_of
from shardq.errors import InvalidOption
from shardq.testing.adoption import Adopted
from shardq.testing.clock_sync import ClockCommands
from shardq.testing.virtual_parts import RealParts, VirtualParts
from shardq.worker.functions import check_result
from shardq.worker.job import Job

if TYPE_CHECKING:
    from shardq.engine.sync import Engine

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""The errors that a handler fails with. All others, such as Ctrl-C and ``pytest.fail``, are meant for the test."""


class Clock(ClockCommands):
    """A clock that a test moves, and the engines that go by it.

    The pytest plugin makes one for each test (``shardq_clock``); in another framework make it yourself:

    >>> with shardq.testing.Clock(url) as clock:
    ...     engine = clock.adopt(shardq.Engine())
    ...     id = engine.push("hi", delay=86_400)
    ...     deliveries = clock.advance(days=1)
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
        self._lock = threading.RLock()
        self._runner: asyncio.Runner | None = None
        """Runs handlers that are coroutine functions; made for the first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _ended(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    def _parts(self, adopted: Adopted[Engine]) -> Parts:
        return RealParts() if self.real_time else VirtualParts(adopted.pollers, self._pushed)

    def _opened(self, engine: Engine) -> Driver:
        return driver_of(engine)

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _pushed(self) -> None:
        """Handles what was pushed inline. What a handler pushes is handled when it has ended."""
        if any(bound.inline for bound in self._bound):
            with self._lock:
                if not self._handling:
                    self._catch_up([], inline=True)

    def _failure(self, job: Job) -> BaseException | None:
        failure: BaseException | None = None
        depth = forks.depth()
        try:
            # In an empty context, as on a worker's thread.
            result = contextvars.Context().run(job.handler.run, job.delivery)
            if job.is_coroutine:
                result = self._awaited(job, result)
            if result is not None:
                check_result(result, job.name, "handler")
        except FAILURES as exc:
            failure = exc
        if forks.depth() != depth:
            forks.leave(failure)
        return failure

    def _awaited(self, job: Job, coroutine: Awaitable[Any]) -> Any:
        limit = job.handler.timeout

        async def within_limit() -> Any:
            try:
                async with asyncio.timeout(limit) as timeout:
                    return await coroutine
            except TimeoutError:
                if not timeout.expired():
                    raise
                raise Retry(reason=f"timed out after {limit:g} s") from None

        waiting = within_limit()
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._runner = self._runner or asyncio.Runner()
            return self._runner.run(waiting, context=contextvars.Context())
        waiting.close()
        if asyncio.iscoroutine(coroutine):
            coroutine.close()
        raise InvalidOption(
            f"the handler {job.name} is a coroutine function, which a clock for threads can't run inside an event "
            "loop: use an AsyncEngine and an AsyncClock (shardq_async_engine, shardq_async_clock) in asyncio tests"
        )
