"""The consumer for threads. Its asyncio twin is ``aio``; what they share is in ``operations``."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from shardq.consumer.desk import Waiter
from shardq.consumer.operations import (
    Claims,
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
from shardq.drivers.sync import Driver
from shardq.errors import LeaseLost, ShardqError
from shardq.model.checks import duration_ms
from shardq.model.task import Delivery
from shardq.operation import run

log = logging.getLogger("shardq.consumer")

GIVE_BACK_S = 1.0
"""The bound of each trip of an interrupted claim that gives back; who pressed Ctrl-C waits."""


class Consumer:
    """Claims ready tasks of its topics, the first topic first, and settles them. For one thread at a time.

    >>> for delivery in consumer.claim(100, wait=1.0):
    ...     handle(delivery.payload)
    ...     consumer.ack(delivery)
    """

    def __init__(self, driver: Driver, claims: Claims, room: Callable[[], Room]) -> None:
        self._driver = driver
        self._claims = claims
        self._room = room
        self._closed = False
        self._event: threading.Event | None = None

    def __repr__(self) -> str:
        return f"<Consumer {self._claims.name} of {self._claims.topics}>"

    def claim(self, max: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Up to ``max`` deliveries under a lease; waits up to ``wait`` seconds for the first of them."""
        check_claim(max, wait)
        if not wait:
            return self._claimed(max, self._claims.atlas.topology.span())
        self._driver.check_open()
        room, event = self._room(), threading.Event()
        self._event = event
        waiter = self._claims.waiter = Waiter(self._claims.wanted_topics(), event.set)
        waits = Waits(self._claims, room, waiter, time.monotonic() + wait)
        room.desk.enter(waiter)
        try:
            while not self._closed and (step := waits.step(time.monotonic())) is not None:
                if isinstance(step, Sleep):
                    event.wait(step.seconds)
                    event.clear()
                    continue
                if isinstance(step, Lengths):
                    run(self._driver, lengths_asked(self._claims, step.shards, room))
                    continue
                if deliveries := self._claimed(max, step.shards, room if step.naming else None):
                    return deliveries
            return []
        finally:
            room.left(waiter, self._claims.hints.left(self._claims.atlas.topology.span()))

    def _claimed(self, max: int, shards: Sequence[int], room: Room | None = None) -> list[Delivery]:
        taken = Taken()
        try:
            return run(self._driver, claimed(self._claims, taken, max, shards, room))
        except ShardqError:
            raise
        except BaseException:
            # Ctrl-C: nobody will handle what was given meanwhile
            run(self._driver, given_back(self._claims, taken), GIVE_BACK_S)
            raise

    def close(self) -> None:
        """Ends a claim that waits, from any thread; later ones do not wait."""
        self._closed = True
        event = self._event
        if event is not None:
            event.set()

    def __iter__(self) -> Iterator[Delivery]:
        """Deliveries one by one, until ``close()``: acked when the loop comes back for the next, retried when its body
        raises or leaves the loop.

        >>> for delivery in consumer:
        ...     handle(delivery.payload)
        """
        while not self._closed:
            for delivery in self.claim(1, wait=ITERATION_WAIT_S):
                done = False
                try:
                    yield delivery
                    done = True
                finally:
                    self._end(delivery, done)

    def _end(self, delivery: Delivery, done: bool) -> None:
        try:
            if done:
                self.ack(delivery)
            else:
                self.retry(delivery, reason="the loop over its consumer was left")
        except LeaseLost as exc:
            # another consumer has it: no reason to end the loop
            log.warning("%s", exc)

    def ack(self, deliveries: Delivery | Iterable[Delivery]) -> None:
        """Done: the tasks are removed. Raises LeaseLost for those given to another meanwhile, and SettleError when some
        shards could not be told; the rest are done.
        """
        by_shard = {shard: (acks, ()) for shard, acks in acks_by_shard(one_or_many(deliveries)).items()}
        check_held(run(self._driver, settled(self._claims, by_shard)), replaced_is_fine=True)

    def retry(
        self,
        deliveries: Delivery | Iterable[Delivery],
        *,
        delay: float | dt.timedelta = 0,
        reason: str = "retried",
    ) -> None:
        """Again after ``delay``; a failed attempt. With none left the task is dead, for ``reason``."""
        by_shard = retries(one_or_many(deliveries), delay, reason, self._claims.max_attempts)
        check_held(run(self._driver, settled(self._claims, by_shard)), replaced_is_fine=False)

    def bury(self, deliveries: Delivery | Iterable[Delivery], reason: str) -> None:
        """Dead, for ``reason``; ``engine.requeue(id)`` brings it back."""
        by_shard = burials(one_or_many(deliveries), reason)
        check_held(run(self._driver, settled(self._claims, by_shard)), replaced_is_fine=False)

    def extend(self, deliveries: Delivery | Iterable[Delivery], seconds: float | dt.timedelta) -> None:
        """The lease now ends ``seconds`` from now. Raises LeaseLost for those no longer held."""
        held = acks_by_shard(one_or_many(deliveries))
        lease_ms = duration_ms(seconds, "seconds")
        check_held(run(self._driver, extended(self._claims, held, lease_ms)), replaced_is_fine=False)
