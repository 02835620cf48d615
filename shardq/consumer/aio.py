"""The consumer for asyncio. Its twin for threads is ``sync``; they share ``claiming`` and ``settling``."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from shardq.calls.consume import SettleStatus
from shardq.consumer.arguments import ITERATION_WAIT_S, burials, check_claim, retries
from shardq.consumer.background import BackgroundTasks
from shardq.consumer.claim_notes import ClaimNotes
from shardq.consumer.claiming import ask_lengths, claim, give_back
from shardq.consumer.claims import Claims
from shardq.consumer.settling import (
    SettlementsByShard,
    acks_by_shard,
    check_held,
    extend,
    one_or_many,
    settle,
)
from shardq.consumer.waiting.registry import Waiter
from shardq.consumer.waiting.strategy import AskLengths, Sleep, WaitStrategy
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.drivers.aio import AsyncDriver
from shardq.errors import LeaseLost
from shardq.model.checks import duration_ms
from shardq.model.task import Delivery
from shardq.operation import arun

log = logging.getLogger("shardq.consumer")


class AsyncConsumer:
    """Claims ready tasks of its topics, the first topic first, and settles them. For one task at a time.

    >>> for delivery in await consumer.claim(100, wait=1.0):
    ...     handle(delivery.payload)
    ...     await consumer.ack(delivery)
    """

    def __init__(
        self,
        driver: AsyncDriver,
        claims: Claims,
        wakeups: Callable[[], Awaitable[Wakeups]],
        background: BackgroundTasks,
    ) -> None:
        self._driver = driver
        self._claims = claims
        self._wakeups = wakeups
        self._background = background
        self._closed = False
        self._event: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self._claims.name} of {self._claims.topics}>"

    async def claim(self, max: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Returns up to ``max`` deliveries under a lease; waits up to ``wait`` seconds for the first of them."""
        check_claim(max, wait)
        if not wait:
            return await self._claimed(max, self._claims.cache.topology.span())
        self._driver.check_open()
        wakeups, event, loop = await self._wakeups(), asyncio.Event(), asyncio.get_running_loop()
        self._event = event
        # Subscriber connections are served by threads.
        waiter = self._claims.waiter = Waiter(self._claims.wanted_topics(), lambda: _set(loop, event))
        strategy = WaitStrategy(self._claims, wakeups, waiter, time.monotonic() + wait)
        wakeups.waiters.enter(waiter)
        try:
            while not self._closed and (step := strategy.step(time.monotonic())) is not None:
                if isinstance(step, Sleep):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), step.seconds)
                    event.clear()
                    continue
                if isinstance(step, AskLengths):
                    await arun(self._driver, ask_lengths(self._claims, step.shards, wakeups))
                    continue
                if deliveries := await self._claimed(max, step.shards, wakeups if step.registering else None):
                    return deliveries
            return []
        finally:
            wakeups.waiter_left(waiter, self._claims.planner.left(self._claims.cache.topology.span()))

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

    def close(self) -> None:
        """Ends a claim that waits. Call it from the consumer's loop. Later claims do not wait."""
        self._closed = True
        event = self._event
        if event is not None:
            event.set()

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        """Deliveries one by one, until ``close()``: acked when the loop comes back for the next, retried when its body
        raises or leaves the loop.

        >>> async for delivery in consumer:
        ...     await handle(delivery.payload)
        """
        while not self._closed:
            for delivery in await self.claim(1, wait=ITERATION_WAIT_S):
                done = False
                try:
                    yield delivery
                    done = True
                finally:
                    # Finished even if the loop is cancelled in it, or left as the engine closes.
                    await self._background.finish(self._end(delivery, done))

    async def _end(self, delivery: Delivery, done: bool) -> None:
        try:
            if done:
                await self.ack(delivery)
            else:
                await self.retry(delivery, reason="the loop over its consumer was left")
        except LeaseLost as exc:
            # Another consumer has it, which is no reason to end the loop.
            log.warning("%s", exc)

    async def _settled(self, by_shard: SettlementsByShard) -> dict[str, SettleStatus]:
        """Settles. Where permits go back with it, that is finished even if the caller is cancelled."""
        steps = arun(self._driver, settle(self._claims, by_shard))
        return await (self._background.finish(steps) if self._claims.limiter.any_held else steps)

    async def ack(self, deliveries: Delivery | Iterable[Delivery]) -> None:
        """Removes tasks that are done. Raises LeaseLost for those given to another consumer meanwhile, and SettleError
        when some shards could not be told; the rest are done.
        """
        by_shard: SettlementsByShard = {s: (acks, ()) for s, acks in acks_by_shard(one_or_many(deliveries)).items()}
        check_held(await self._settled(by_shard), replaced_is_fine=True)

    async def retry(
        self,
        deliveries: Delivery | Iterable[Delivery],
        *,
        delay: float | dt.timedelta = 0,
        reason: str = "retried",
    ) -> None:
        """Schedules tasks again after ``delay``, as failed attempts. A task without attempts left is dead, for
        ``reason``.
        """
        by_shard = retries(one_or_many(deliveries), delay, reason, self._claims.max_attempts)
        check_held(await self._settled(by_shard), replaced_is_fine=False)

    async def bury(self, deliveries: Delivery | Iterable[Delivery], reason: str) -> None:
        """Makes tasks dead, for ``reason``. ``engine.requeue(id)`` brings one back."""
        by_shard = burials(one_or_many(deliveries), reason)
        check_held(await self._settled(by_shard), replaced_is_fine=False)

    async def extend(self, deliveries: Delivery | Iterable[Delivery], seconds: float | dt.timedelta) -> None:
        """Lets the leases end ``seconds`` from now. Raises LeaseLost for those no longer held."""
        held = acks_by_shard(one_or_many(deliveries))
        lease_ms = duration_ms(seconds, "seconds")
        check_held(await arun(self._driver, extend(self._claims, held, lease_ms)), replaced_is_fine=False)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """Sets the event from a thread. A loop that has ended has no waiter left."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
