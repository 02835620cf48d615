# For asyncio. `make fmt` generates clock_sync.py from it.
"""A clock that a test moves: moving time, and handling what falls due on the way."""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from shardq.core import forks
from shardq.core.calls import observe
from shardq.core.calls.consume import SettleSnooze
from shardq.core.model.task import Delivery
from shardq.core.operation import Many, Operation, arun, values
from shardq.core.topology_cache import TopologyCache
from shardq.engine.aio import AsyncEngine
from shardq.engine.base import Inside
from shardq.engine.parts import Parts
from shardq.errors import InvalidOption
from shardq.outbox.rows import clocks
from shardq.testing import adoption
from shardq.testing.adoption import NOT_IN_A_LOOP, Adopted, BoundWorker, check_kind, within_limit
from shardq.testing.virtual import EPOCH, US, VirtualTime, instant_us, moved, step_of
from shardq.worker.base import WorkerBase, engine_of
from shardq.worker.functions import check_result
from shardq.worker.job import Job, Settlement

if True:  # ASYNC
    from collections.abc import AsyncIterator
    from functools import partial

    from shardq.testing.virtual_parts import AsyncRealParts, AsyncVirtualParts
else:
    import threading
    from collections.abc import Awaitable

    from shardq.testing.virtual_parts import RealParts, VirtualParts

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.worker.aio import AsyncWorker

LOOK_S = 0.01
"""The time between two looks for something to handle, in real time."""

FAILURES = (Exception, SystemExit, asyncio.CancelledError)
"""The errors that a handler fails with. All others, such as Ctrl-C and ``pytest.fail``, are meant for the test."""

PATIENCE_S = 10.0
"""The time for which pollers may be late in real time, on a busy machine."""


class AsyncClock:
    """A clock that a test moves, and the engines that go by it.

    The pytest plugin makes one for each test (``shardq_clock``, and ``shardq_async_clock`` for asyncio); in another
    framework make it yourself:

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
        """``url``: the server for the engines that are adopted. ``start``: the first now, by default the present.
        ``real_time``: time is not moved but waited for. ``too_long``: called with the seconds of each wait, so that it
        can refuse it.
        """
        if real_time and start is not None:
            raise InvalidOption("start= is not possible in real time: the server has its own clock")
        if not isinstance(url, str):
            raise InvalidOption(
                f"url can't be {url!r:.80}; name the server of the tests, such as redis://127.0.0.1:6379"
            )
        self.url = url
        self.real_time = real_time
        self._too_long = too_long
        first = dt.datetime.now(dt.UTC) if start is None else EPOCH + instant_us(start) * US
        self._time = VirtualTime(first)
        self._adopted: list[Adopted[AsyncEngine]] = []
        self._bound: list[BoundWorker] = []
        self._handling = False
        self._again = False
        """True if something was pushed inline while handlers ran."""
        if True:  # ASYNC
            self._lock = asyncio.Lock()
            """Held while time moves and while handlers run."""
            self._loop: asyncio.AbstractEventLoop | None = None
            """The loop that an engine was opened in last."""
            self._at_its_end: AsyncIterator[None] | None = None
        else:
            self._lock = threading.RLock()
            """Held while time moves and while handlers run, which may take it again."""
            self._runner: asyncio.Runner | None = None
            """Runs handlers that are coroutine functions; made for the first."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        kind = "real time" if self.real_time else "virtual time"
        return f"<{type(self).__name__} in {kind}, {self.now():%Y-%m-%d %H:%M:%S.%f} UTC>"

    def now(self) -> dt.datetime:
        """The present instant, in UTC.

        >>> engine.push("hi", at=clock.now() + dt.timedelta(days=1))
        """
        return dt.datetime.now(dt.UTC) if self.real_time else self._time.now

    def _now_ms(self) -> int:
        return self._time.now_us // 1000

    # ---- engines and workers

    def _parts(self, adopted: Adopted[AsyncEngine]) -> Parts:
        if True:  # ASYNC
            if self.real_time:
                return AsyncRealParts(self._entered)
            return AsyncVirtualParts(adopted.pollers, self._entered, self._pushed)
        else:
            return RealParts() if self.real_time else VirtualParts(adopted.pollers, self._pushed)

    def adopt(self, engine: AsyncEngine, *, shards: int | None = None) -> AsyncEngine:
        """Lets an engine of your program go by this clock, until ``close``: on the clock's server, under a new name,
        with ``shards`` shards if given. Returns the engine, which must not be open yet.

        >>> engine = clock.adopt(shardq.Engine(name="shop"))
        """
        check_kind(engine, AsyncEngine, self)
        adopted = Adopted(engine, self._time, real_time=self.real_time)
        name = f"test-{uuid.uuid4().hex[:16]}"
        adopted.begin(self._parts(adopted), url=self.url, name=name, shards=shards)
        self._adopted.append(adopted)
        if not self.real_time and self._now_ms not in clocks:
            clocks.append(self._now_ms)  # from now on, pushes into an outbox count by it
        return engine

    def bind(self, worker: AsyncWorker, *, inline: bool = False, raising: bool = False) -> None:
        """From now on, what falls due is handled by the worker's handlers: one by one, each at its own instant. They
        run in the test, and end as in ``worker.run()``: in an ack, a retry after the backoff, or a burial.

        ``inline``: also as part of each push. ``raising``: the exception of a handler goes on to whoever moved the
        clock, or pushed, after the task was settled; the clock stands at that instant.

        >>> clock.bind(worker)
        >>> deliveries = clock.advance(days=1)
        """
        if not isinstance(worker, WorkerBase):
            raise InvalidOption(f"{worker!r:.80} is no worker; give one that engine.worker() has made")
        engine = engine_of(worker)
        for adopted in self._adopted:
            if adopted.engine is engine:
                self._bound.append(BoundWorker(adopted.engine, worker, inline=inline, raising=raising))
                return
        raise InvalidOption(f"{worker!r} is of an engine that this clock does not move; give that to clock.adopt()")

    async def close(self) -> None:
        """Closes the adopted engines, removes their tasks, and gives the engines back as they were.

        >>> clock.close()
        """
        adopted, self._adopted = self._adopted, []
        self._bound = []
        if self._now_ms in clocks:
            clocks.remove(self._now_ms)
        if False:  # ASYNC
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()
        for each in adopted:
            try:
                if each.has_tasks:
                    await each.engine.open()
                    await each.engine.stop()
                    await arun(await Inside(each.engine).open_driver(), adoption.remove(Inside(each.engine).cache))
            finally:
                try:
                    await each.engine.close()
                finally:
                    each.end()

    if TYPE_CHECKING or True:  # ASYNC

        def close_from_outside(self) -> None:
            """Closes where no loop runs, as in a fixture that is no coroutine: in the loop that the engines are open
            in, or in a new one if that has ended.

            >>> clock.close_from_outside()
            """
            if self._loop is not None and not self._loop.is_closed():
                self._loop.run_until_complete(self.close())
            elif self._adopted:
                asyncio.run(self.close())

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

    async def _driver(self, adopted: Adopted[AsyncEngine]) -> AsyncDriver:
        """The driver of an adopted engine, which is opened, and has pollers in real time."""
        driver: AsyncDriver = await Inside(adopted.engine).open_driver()
        if self.real_time:
            await adopted.engine.start()
        return driver

    # ---- moving time

    async def advance(
        self,
        delta: dt.timedelta | None = None,
        /,
        *,
        weeks: float = 0,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        milliseconds: float = 0,
    ) -> list[Delivery]:
        """Moves time on. All that falls due on the way is dispatched in due order, each task at its own instant, and
        handled there if a worker is bound: what a handler pushes with a delay is part of it. Leases and dedup windows
        end on the way. Returns what was handled, in order. Without arguments: what is due now.

        In real time it waits.

        >>> deliveries = clock.advance(days=1, hours=2)
        >>> deliveries = clock.advance(dt.timedelta(minutes=5))
        """
        step = step_of(
            delta,
            {
                "weeks": weeks,
                "days": days,
                "hours": hours,
                "minutes": minutes,
                "seconds": seconds,
                "milliseconds": milliseconds,
            },
        )
        return await self.advance_to(moved(self.now(), step))

    async def advance_to(self, when: dt.datetime) -> list[Delivery]:
        """Moves time on to an instant, an aware datetime. A clock can't go back.

        >>> deliveries = clock.advance_to(clock.now() + dt.timedelta(days=1))
        """
        target_us = instant_us(when)
        if self._handling:
            raise InvalidOption("a handler can't move the clock that it is handled by: push with a delay instead")
        handled: list[Delivery] = []
        async with self._lock:
            for bound in self._bound:
                if not bound.is_declared:
                    await Inside(bound.engine).declare_recurring(bound.functions)
                    bound.is_declared = True
            if self.real_time:
                await self._wait(target_us, handled)
            elif target_us < self._time.now_us:
                raise InvalidOption(f"the clock can't go back: it shows {self.now()}, and {when} is before that")
            else:
                await self._pass(target_us, handled)
        return handled

    async def _pass(self, target_us: int, handled: list[Delivery]) -> None:
        for adopted in self._adopted:
            adopted.pollers.doubt()
        for bound in self._bound:
            bound.hopeful = None
        while True:
            await self._catch_up(handled)
            next_us = self._next_us()
            if next_us is None or next_us > target_us:
                break
            if not self._bound and not any(adopted.pollers.has_routes for adopted in self._adopted):
                # nobody looks before something is to be done about a schedule
                instants = [adopted.pollers.schedules_us for adopted in self._adopted]
                next_us = min([target_us, *(each for each in instants if each is not None)])
                for adopted in self._adopted:
                    await arun(await self._driver(adopted), adopted.pollers.sweep(next_us))
            self._time.now_us = max(next_us, self._time.now_us)
        self._time.now_us = target_us
        for adopted in self._adopted:
            await arun(await self._driver(adopted), adopted.pollers.trim())

    async def _catch_up(self, handled: list[Delivery], *, inline: bool = False) -> None:
        """Dispatches what is due by now, and has it handled until nothing is left."""
        progress = True
        while progress or self._again:
            progress = self._again = False
            for adopted in self._adopted:
                pollers, driver = adopted.pollers, await self._driver(adopted)
                if not inline:
                    self._move_rows(adopted)
                    await arun(driver, pollers.serve_schedules())
                await arun(driver, pollers.catch_up())
                for bound in self._bound:
                    if bound.engine is adopted.engine:
                        bound.arrived(pollers.arrived)
                pollers.arrived = set()
            for bound in self._bound:
                if bound.inline or not inline:
                    progress = await self._handle(bound, handled) or progress

    def _move_rows(self, adopted: Adopted[AsyncEngine]) -> None:
        self._handling = True  # what becomes ready is handled afterwards
        try:
            adopted.move_rows()
        finally:
            self._handling = False

    def _next_us(self) -> int | None:
        """The next instant at which something is to be done."""
        instants = [adopted.pollers.next_us() for adopted in self._adopted]
        for bound in self._bound:
            pause_us = bound.pause_us()
            instants.append(None if pause_us is None else self._time.now_us + pause_us)
        return min((each for each in instants if each is not None), default=None)

    async def _wait(self, target_us: int, handled: list[Delivery]) -> None:
        wait_s = target_us / 1e6 - time.time()
        if self._too_long is not None:
            self._too_long(wait_s)
        until = time.monotonic() + wait_s
        while True:
            left_s = until - time.monotonic()
            is_dispatched = left_s <= 0 and await self._is_dispatched(target_us)
            progress = False
            for bound in self._bound:
                bound.hopeful = None
                progress = await self._handle(bound, handled) or progress
            if (is_dispatched and not progress) or left_s < -PATIENCE_S:
                return
            if not progress:
                pause_s = min(LOOK_S, left_s) if left_s > 0 and self._bound else max(LOOK_S, left_s)
                await asyncio.sleep(pause_s)

    async def _is_dispatched(self, target_us: int) -> bool:
        for adopted in self._adopted:
            heads = await arun(await self._driver(adopted), _heads(Inside(adopted.engine).cache))
            if any(head is not None and head * 1000 <= target_us for head in heads):
                return False
        return True

    # ---- handling

    async def _handle(self, bound: BoundWorker, handled: list[Delivery]) -> bool:
        """Claims and handles once. Returns True if there was something."""
        adopted = next(each for each in self._adopted if each.engine is bound.engine)
        driver = await self._driver(adopted)
        jobs = await arun(driver, bound.claim(adopted.pollers.handlers))
        if not jobs:
            return False
        ended: list[tuple[Job, Settlement]] = []
        failure: BaseException | None = None
        self._handling = True
        try:
            for job in jobs:
                bound.before(job)
                failure = await self._failure(job)
                handled.append(job.delivery)
                settlement = bound.concluded(job, failure)
                ended.append((job, settlement))
                if isinstance(settlement, SettleSnooze) and job.unknown is None:
                    failure = None
                if failure is not None and bound.raising:
                    break
        finally:
            self._handling = False
            rest = [(job, job.back()) for job in jobs[len(ended) :]]
            await arun(driver, bound.settle([*ended, *rest]))
        if failure is not None and bound.raising:
            raise failure
        return True

    if True:  # ASYNC

        async def _pushed(self) -> None:
            """Handles what was pushed inline. What a handler pushes is handled when it has ended."""
            if any(bound.inline for bound in self._bound):
                if self._handling:
                    self._again = True
                    return
                async with self._lock:
                    await self._catch_up([], inline=True)

        async def _failure(self, job: Job) -> BaseException | None:
            """Runs the job's handler. Returns the exception that it failed with; raises what is meant for the test."""
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
            async def run() -> Any:
                return await job.handler.run(job.delivery)

            task = asyncio.get_running_loop().create_task(run(), context=contextvars.Context())
            return await within_limit(task, job.handler.timeout)

    else:

        def _pushed(self) -> None:
            """Handles what was pushed inline. What a handler pushes is handled when it has ended."""
            if any(bound.inline for bound in self._bound):
                with self._lock:
                    if not self._handling:
                        self._catch_up([], inline=True)

        def _failure(self, job: Job) -> BaseException | None:
            """Runs the job's handler. Returns the exception that it failed with; raises what is meant for the test."""
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
            waiting = within_limit(coroutine, job.handler.timeout)
            try:
                asyncio.get_running_loop()
            except RuntimeError:
                self._runner = self._runner or asyncio.Runner()
                return self._runner.run(waiting, context=contextvars.Context())
            waiting.close()
            if asyncio.iscoroutine(coroutine):
                coroutine.close()
            raise InvalidOption(f"the handler {job.name} is {NOT_IN_A_LOOP}")


def _heads(cache: TopologyCache) -> Operation[list[int | None]]:
    """The due times of the first scheduled task of each shard, in ms."""
    epoch = cache.topology.epoch
    calls = {keys.shard: observe.peek(keys, epoch, ()) for keys in cache.span()}
    counts: dict[int, observe.ShardCounts] = values((yield Many(calls)))
    return [None if each.head_ms is None else int(each.head_ms) for each in counts.values()]
