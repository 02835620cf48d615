"""The consumer for asyncio: what becomes of its requests when their caller is cancelled. Its twin is ``sync``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from shardq.calls.consume import SettleStatus
from shardq.consumer.background import BackgroundTasks
from shardq.consumer.claim_notes import ClaimNotes
from shardq.consumer.claiming import claim, give_back
from shardq.consumer.claims import Claims
from shardq.consumer.consuming_aio import AsyncConsuming
from shardq.consumer.settling import SettlementsByShard, settle
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.drivers.aio import AsyncDriver
from shardq.model.task import Delivery
from shardq.operation import arun


class AsyncConsumer(AsyncConsuming):
    """Claims ready tasks of its topics, the first topic first, and settles them. For one task at a time.

    >>> for delivery in await consumer.claim(100, wait=1.0):
    ...     await handle(delivery.payload)
    ...     await consumer.ack(delivery)
    """

    def __init__(
        self,
        open: Callable[[], Awaitable[tuple[AsyncDriver, Claims, BackgroundTasks]]],
        wakeups: Callable[[], Awaitable[Wakeups]],
        topics: Sequence[str],
    ) -> None:
        super().__init__(wakeups)
        self._open = open
        self._topics = topics
        self._is_open = False

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self._claims.name if self._is_open else 'not used yet'} of {list(self._topics)}>"

    async def _opened(self) -> None:
        if not self._is_open:
            driver, claims, background = await self._open()
            # Another command may have been first.
            if not self._is_open:
                self._driver, self._claims, self._background = driver, claims, background
                self._is_open = True

    def _new_event(self) -> LoopEvent:
        return LoopEvent()

    async def _claimed(self, max: int, shards: Sequence[int], wakeups: Wakeups | None = None) -> list[Delivery]:
        notes = ClaimNotes()
        trip = asyncio.create_task(arun(self._driver, claim(self._claims, notes, max, shards, wakeups)))
        try:
            return await asyncio.shield(trip)
        except asyncio.CancelledError:
            # Nobody will handle what comes now: the trip goes on and gives it back; this gives back what came before.
            notes.caller_left = True
            self._background.add(trip)
            self._background.add(asyncio.create_task(arun(self._driver, give_back(self._claims, notes))))
            raise

    async def _settled(
        self, by_shard: SettlementsByShard, *, surely: bool = False, timeout: float | None = None
    ) -> dict[str, SettleStatus]:
        """Settles. Where permits go back with it, that is finished even if the caller is cancelled."""
        steps = arun(self._driver, settle(self._claims, by_shard), timeout)
        return await (self._background.finish(steps) if surely or self._claims.limiter.any_held else steps)

    async def _end(self, delivery: Delivery, done: bool) -> None:
        """Settles the delivery, even if the loop over its consumer is cancelled in it, or left as the engine closes."""
        await self._background.finish(self._settle_one(delivery, done))


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
            await asyncio.wait_for(self._event.wait(), seconds)
