"""The consumer for asyncio. Its twin for threads is ``sync``; what they share is in ``operations``."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

from shardq.calls.consume import Verdict
from shardq.consumer.desk import Waiter
from shardq.consumer.endings import Endings
from shardq.consumer.operations import (
    Claims,
    Settlement,
    acks_by_shard,
    check_held,
    claimed,
    extended,
    given_back,
    lengths_asked,
    one_or_many,
    settled,
)
from shardq.consumer.orders import ITERATION_WAIT_S, burials, check_claim, retries
from shardq.consumer.room import Room
from shardq.consumer.taken import Taken
from shardq.consumer.waits import Lengths, Sleep, Waits
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
        self, driver: AsyncDriver, claims: Claims, room: Callable[[], Awaitable[Room]], endings: Endings
    ) -> None:
        self._driver = driver
        self._claims = claims
        self._room = room
        self._endings = endings
        self._closed = False
        self._event: asyncio.Event | None = None

    def __repr__(self) -> str:
        return f"<AsyncConsumer {self._claims.name} of {self._claims.topics}>"

    async def claim(self, max: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Up to ``max`` deliveries under a lease; waits up to ``wait`` seconds for the first of them."""
        check_claim(max, wait)
        if not wait:
            return await self._claimed(max, self._claims.atlas.topology.span())
        self._driver.check_open()
        room, event, loop = await self._room(), asyncio.Event(), asyncio.get_running_loop()
        self._event = event
        # the ears are threads
        waiter = self._claims.waiter = Waiter(self._claims.wanted_topics(), lambda: _set(loop, event))
        waits = Waits(self._claims, room, waiter, time.monotonic() + wait)
        room.desk.enter(waiter)
        try:
            while not self._closed and (step := waits.step(time.monotonic())) is not None:
                if isinstance(step, Sleep):
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(event.wait(), step.seconds)
                    event.clear()
                    continue
                if isinstance(step, Lengths):
                    await arun(self._driver, lengths_asked(self._claims, step.shards, room))
                    continue
                if deliveries := await self._claimed(max, step.shards, room if step.naming else None):
                    return deliveries
            return []
        finally:
            room.left(waiter, self._claims.hints.left(self._claims.atlas.topology.span()))

    async def _claimed(self, max: int, shards: Sequence[int], room: Room | None = None) -> list[Delivery]:
        taken = Taken()
        trip = asyncio.create_task(arun(self._driver, claimed(self._claims, taken, max, shards, room)))
        try:
            return await asyncio.shield(trip)
        except asyncio.CancelledError:
            # nobody will handle what is given now: the trip goes on and gives it back, and here goes what came before
            taken.caller_left = True
            self._endings.add(trip)
            self._endings.add(asyncio.create_task(arun(self._driver, given_back(self._claims, taken))))
            raise

    def close(self) -> None:
        """Ends a claim that waits, from its loop; later ones do not wait."""
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
                    # finished also when the loop is cancelled in it, or left as the engine closes
                    await self._endings.finish(self._end(delivery, done))

    async def _end(self, delivery: Delivery, done: bool) -> None:
        try:
            if done:
                await self.ack(delivery)
            else:
                await self.retry(delivery, reason="the loop over its consumer was left")
        except LeaseLost as exc:
            # another consumer has it: no reason to end the loop
            log.warning("%s", exc)

    async def _settled(self, by_shard: Settlement) -> dict[str, Verdict]:
        """Where permits go back behind it, it is finished also when the caller is cancelled."""
        steps = arun(self._driver, settled(self._claims, by_shard))
        return await (self._endings.finish(steps) if self._claims.permits.any_held else steps)

    async def ack(self, deliveries: Delivery | Iterable[Delivery]) -> None:
        """Done: the tasks are removed. Raises LeaseLost for those given to another meanwhile, and SettleError when some
        shards could not be told; the rest are done.
        """
        by_shard: Settlement = {s: (acks, ()) for s, acks in acks_by_shard(one_or_many(deliveries)).items()}
        check_held(await self._settled(by_shard), replaced_is_fine=True)

    async def retry(
        self,
        deliveries: Delivery | Iterable[Delivery],
        *,
        delay: float | dt.timedelta = 0,
        reason: str = "retried",
    ) -> None:
        """Again after ``delay``; a failed attempt. With none left the task is dead, for ``reason``."""
        by_shard = retries(one_or_many(deliveries), delay, reason, self._claims.max_attempts)
        check_held(await self._settled(by_shard), replaced_is_fine=False)

    async def bury(self, deliveries: Delivery | Iterable[Delivery], reason: str) -> None:
        """Dead, for ``reason``; ``engine.requeue(id)`` brings it back."""
        by_shard = burials(one_or_many(deliveries), reason)
        check_held(await self._settled(by_shard), replaced_is_fine=False)

    async def extend(self, deliveries: Delivery | Iterable[Delivery], seconds: float | dt.timedelta) -> None:
        """The lease now ends ``seconds`` from now. Raises LeaseLost for those no longer held."""
        held = acks_by_shard(one_or_many(deliveries))
        lease_ms = duration_ms(seconds, "seconds")
        check_held(await arun(self._driver, extended(self._claims, held, lease_ms)), replaced_is_fine=False)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    """From a thread. A loop that has ended has no waiter left to wake."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)
