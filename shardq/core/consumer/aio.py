"""The consumer for asyncio: what becomes of its requests when their caller is cancelled. Its twin is ``sync``."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from shardq.core.calls.consume import SettleStatus
from shardq.core.consumer.ahead import STALE_S, Ahead, BegunClaim
from shardq.core.consumer.claiming import claim, give_back, give_back_leases
from shardq.core.consumer.claims import ClaimNotes, Claims
from shardq.core.consumer.consuming_aio import AsyncConsuming
from shardq.core.consumer.rate_limiter import permits_of
from shardq.core.consumer.settling import SettlementsByShard, settle
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.aio import AsyncDriver
from shardq.core.model.task import Delivery
from shardq.core.operation import Operation, arun
from shardq.errors import ShardqError

T = TypeVar("T")

Trip = asyncio.Task[list[Delivery]]

END_S = 2.0
"""Time for all of it when the engine is closed. A live server needs a part of that; leases that a dead one was not told
of run out.
"""


class AsyncConsumer(AsyncConsuming):
    """Claims ready tasks of its topics, the first topic first, and settles them. For one task at a time.

    >>> for delivery in await consumer.claim(100, wait=1.0):
    ...     await handle(delivery.payload)
    ...     await consumer.ack(delivery)
    """

    def __init__(
        self,
        open: Callable[[float], Awaitable[tuple[AsyncDriver, Claims, BackgroundTasks]]],
        wakeups: Callable[[float], Awaitable[Wakeups]],
        topics: Sequence[str],
        timeout: float,
        ahead: Ahead[Trip] | None = None,
    ) -> None:
        super().__init__(wakeups, ahead)
        self._open = open
        self._topics = topics
        self._timeout = timeout
        self._is_open = False
        self._holder: AheadHolder | None = None

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self._claims.name if self._is_open else 'not used yet'} of {list(self._topics)}>"

    async def _opened(self, within: float = 0.0) -> float:
        deadline = time.monotonic() + within + self._timeout
        if not self._is_open:
            driver, claims, background = await self._open(deadline - within)
            # Another command may have been first.
            if not self._is_open:
                self._driver, self._claims, self._background = driver, claims, background
                self._is_open = True
                self._loop = asyncio.get_running_loop()
                if self._ahead is not None:
                    self._holder = AheadHolder(driver, claims, background, self._ahead)
        return deadline

    def _new_event(self) -> LoopEvent:
        return LoopEvent()

    async def _claimed(
        self, max: int, deadline: float, shards: Sequence[int] | None = None, wakeups: Wakeups | None = None
    ) -> list[Delivery]:
        notes = ClaimNotes()
        if shards is None:
            shards = self._claims.cache.topology.span()
        return await self._awaited(self._trip(notes, max, shards, wakeups, deadline), notes)

    def _trip(
        self, notes: ClaimNotes, max: int, shards: Sequence[int], wakeups: Wakeups | None, deadline: float
    ) -> Trip:
        filled = None if self._ahead is None else partial(self._filled, max)
        steps = claim(self._claims, notes, max, shards, wakeups, filled)
        return asyncio.create_task(arun(self._driver, steps, deadline=deadline))

    async def _awaited(self, trip: Trip, notes: ClaimNotes) -> list[Delivery]:
        try:
            return await asyncio.shield(trip)
        except asyncio.CancelledError:
            # The trip goes on and gives back what still comes; this gives back what came before.
            notes.caller_left = True
            self._background.add(trip)
            self._background.add(_given_back(self._driver, give_back(self._claims, notes)))
            raise

    # ---- claimed ahead

    def _begun(self, size: int) -> BegunClaim[Trip]:
        notes, since = ClaimNotes(), time.monotonic()
        span, deadline = self._claims.cache.topology.span(), since + self._timeout
        return BegunClaim(self._trip(notes, size, span, None, deadline), notes, since)

    async def _finished(self, begun: BegunClaim[Trip], deadline: float) -> list[Delivery]:
        try:
            return await self._awaited(begun.work, begun.notes)
        except ShardqError:
            return []

    def _watch_ahead(self) -> None:
        if self._holder is not None:
            self._holder.watch()

    def _release(self) -> None:
        # A loop that has ended holds nothing: its engine was closed before, or the leases run out.
        if self._holder is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._holder.release)

    async def _settled(
        self, by_shard: SettlementsByShard, deadline: float, *, surely: bool = False
    ) -> dict[str, SettleStatus]:
        """Settles. Where permits may go back with it, that is finished even if the caller is cancelled."""
        steps = arun(self._driver, settle(self._claims, by_shard), deadline=deadline)
        if not surely and self._claims.cache.topology.limits:
            surely = any(permits_of([*acks, *others]) for acks, others in by_shard.values())
        return await (self._background.finish(steps) if surely else steps)

    async def _end(self, delivery: Delivery, done: bool) -> None:
        """Settles the delivery, even if the loop over its consumer is cancelled in it, or left as the engine closes."""
        await self._background.finish(self._settle_one(delivery, done))


class AheadHolder:
    """The tasks that one consumer holds ahead, given back when they are held for too long, and at the end. For the
    loop's thread."""

    def __init__(self, driver: AsyncDriver, claims: Claims, background: BackgroundTasks, ahead: Ahead[Trip]) -> None:
        self._driver = driver
        self._claims = claims
        self._background = background
        self._ahead = ahead
        self._timer: asyncio.TimerHandle | None = None
        background.holders.add(self)

    def watch(self) -> None:
        """Gives back what is stale from now on, as long as anything is held."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(STALE_S / 2, self._look)

    def _look(self) -> None:
        self._timer = None
        self.release(time.monotonic())
        if self._ahead.any:
            self.watch()

    def release(self, now_s: float = math.inf) -> None:
        """Gives back what is stale at that time."""
        ahead = self._ahead
        if not ahead.stale(now_s):
            return
        with ahead.lock:
            begun, rest = ahead.empty()
        if begun is not None:
            begun.work.add_done_callback(_heard)
            self._background.add(begun.work)
            self._give_back(give_back(self._claims, begun.notes))
        if rest:
            self._give_back(give_back_leases(self._claims, rest))

    def _give_back(self, steps: Operation[None]) -> None:
        self._background.add(_given_back(self._driver, steps))


def _given_back(driver: AsyncDriver, steps: Operation[None]) -> asyncio.Task[None]:
    return asyncio.create_task(arun(driver, steps, deadline=time.monotonic() + driver.settings.timeout))


def _heard(trip: Trip) -> None:
    """Takes the error of a claim ahead: the next claim meets it."""
    if not trip.cancelled():
        trip.exception()


class LoopEvent:
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
        self.holders: weakref.WeakSet[AheadHolder] = weakref.WeakSet()
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
