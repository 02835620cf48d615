"""The two clocks: how each carries out the steps of ``ClockBase``, and runs handlers."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Coroutine
from functools import partial
from typing import Any, Self

from shardq import AsyncEngine, Engine
from shardq.core.consumer.policy import Retry
from shardq.core.drivers.conversations import adrive, drive
from shardq.core.model.task import AsyncReceipt, Delivery, Receipt
from shardq.core.operation import arun, run
from shardq.delivery.batch import Batch
from shardq.delivery.job import Unit
from shardq.errors import InvalidOption
from shardq.testing.adoption import Adopted, context_of
from shardq.testing.clock_base import ClockBase, Steps
from shardq.testing.virtual_drivers import VirtualDriverFactory
from shardq.worker.lifecycle import Calls


class Clock(ClockBase[Engine, Receipt, list[Delivery], None]):
    """A clock that a test moves, and the engines that go by it.

    The pytest plugin makes one for each test (``shardq_clock``, and ``shardq_async_clock`` for asyncio); in another
    framework make it yourself:

    >>> with shardq.testing.Clock(url) as clock:
    ...     engine = clock.adopt(shardq.Engine())
    ...     id = engine.push("hi", delay=86_400)
    ...     deliveries = clock.advance(days=1)
    """

    _kind = Engine
    _run = staticmethod(run)
    _sleep = staticmethod(time.sleep)
    _new_lock = staticmethod(threading.RLock)  # handlers may take it again
    _runner: asyncio.Runner | None = None
    """Runs handlers that are coroutine functions; made for the first."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _closing(self) -> Steps[None]:
        try:
            yield from super()._closing()
        finally:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()

    def _factory(self, adopted: Adopted[Engine]) -> VirtualDriverFactory:
        return VirtualDriverFactory(None if self.real_time else adopted.pollers, self._pushed)

    def _pushed(self) -> None:
        """Handles what was pushed inline. What a handler pushes is handled when it has ended."""
        if any(bound.inline for bound in self._bound):
            with self._lock:
                if not self._handling and not self._deferring:
                    self._carry_out(self._catch_up([], inline=True))

    def _carry_out(self, steps: Steps[Any]) -> Any:
        return drive(steps, lambda step: step(), thrown=BaseException)

    def _carry_out_alone(self, steps: Steps[Any]) -> Any:
        with self._lock:
            return self._carry_out(steps)

    def _result(self, unit: Unit, given: Delivery | Batch[Any]) -> Any:
        context = context_of(given)
        result = context.run(unit.handler.run, given)
        if not unit.is_coroutine:
            return result
        return self._awaited(_within_limit(result, unit.handler.timeout), f"the handler {unit.name}", context, result)

    def _called(self, calls: Calls) -> None:
        async def wait(work: Awaitable[object]) -> None:
            await work

        drive(
            calls,
            lambda work: self._awaited(wait(work), "what the worker calls", contextvars.Context(), work),
            thrown=BaseException,
        )

    def _awaited(
        self, waiting: Coroutine[Any, Any, Any], what: str, context: contextvars.Context, within: Awaitable[Any]
    ) -> Any:
        """``within``: what is awaited there, which is closed with it."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._runner = self._runner or asyncio.Runner()
            return self._runner.run(waiting, context=context)
        waiting.close()
        if asyncio.iscoroutine(within):
            within.close()
        raise InvalidOption(
            f"{what} is a coroutine function, which a clock for threads can't run inside an event loop: use an "
            "AsyncEngine and an AsyncClock (shardq_async_engine, shardq_async_clock) in asyncio tests"
        )


class AsyncClock(ClockBase[AsyncEngine, AsyncReceipt, Coroutine[Any, Any, list[Delivery]], Coroutine[Any, Any, None]]):
    """A clock for asyncio: ``advance``, ``advance_to`` and ``close`` are awaited.

    >>> async with shardq.testing.AsyncClock(url) as clock:
    ...     engine = clock.adopt(shardq.AsyncEngine())
    ...     id = await engine.push("hi", delay=86_400)
    ...     deliveries = await clock.advance(days=1)
    """

    _kind = AsyncEngine
    _run = staticmethod(arun)
    _sleep = staticmethod(asyncio.sleep)
    _new_lock = asyncio.Lock
    _loop: asyncio.AbstractEventLoop | None = None
    """The loop that an engine was opened in last."""
    _at_its_end: AsyncIterator[None] | None = None

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

    def _factory(self, adopted: Adopted[AsyncEngine]) -> VirtualDriverFactory:
        return VirtualDriverFactory(None if self.real_time else adopted.pollers, self._pushed, self._entered)

    async def _entered(self) -> None:
        """Sees to it that the engines are closed when the running loop ends."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._at_its_end = loop, self._until_it_ends()
            await anext(self._at_its_end)

    async def _until_it_ends(self) -> AsyncIterator[None]:
        # Loops close their generators before they end: afterwards connections can't be closed.
        try:
            yield
        finally:
            for adopted in self._adopted:
                await adopted.engine.close()
                adopted.rest()

    async def _pushed(self) -> None:
        """Handles what was pushed inline. What a handler pushes is handled when it has ended."""
        if any(bound.inline for bound in self._bound):
            if self._handling or self._deferring:
                self._again = True
            else:
                await self._carry_out_alone(self._catch_up([], inline=True))

    async def _carry_out(self, steps: Steps[Any]) -> Any:
        return await adrive(steps, lambda step: step(), thrown=BaseException)

    async def _carry_out_alone(self, steps: Steps[Any]) -> Any:
        async with self._lock:
            return await self._carry_out(steps)

    async def _result(self, unit: Unit, given: Delivery | Batch[Any]) -> Any:
        loop = asyncio.get_running_loop()
        context = context_of(given)
        if not unit.is_coroutine:
            return await loop.run_in_executor(None, partial(context.run, unit.handler.run, given))

        async def run() -> Any:
            return await unit.handler.run(given)

        return await _within_limit(loop.create_task(run(), context=context), unit.handler.timeout)

    async def _called(self, calls: Calls) -> None:
        await adrive(calls, lambda call: call, thrown=BaseException)

    def _is_cancelled(self, exc: BaseException) -> bool:
        task = asyncio.current_task()
        return isinstance(exc, asyncio.CancelledError) and task is not None and bool(task.cancelling())


async def _within_limit(handling: Awaitable[Any], limit: float | None) -> Any:
    """Returns the result of a handler that is a coroutine function. One that takes longer than its limit is retried."""
    try:
        async with asyncio.timeout(limit) as timeout:
            return await handling
    except TimeoutError:
        if not timeout.expired():
            raise
        raise Retry(reason=f"timed out after {limit:g} s") from None
