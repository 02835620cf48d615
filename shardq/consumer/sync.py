"""The consumer for threads. Its asyncio twin is ``aio``; they share ``claiming`` and ``settling``."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from shardq.consumer.arguments import ITERATION_WAIT_S, burials, check_claim, retries
from shardq.consumer.claim_notes import ClaimNotes
from shardq.consumer.claiming import ask_lengths, claim, give_back
from shardq.consumer.claims import Claims
from shardq.consumer.settling import (
    acks_by_shard,
    check_held,
    extend,
    one_or_many,
    settle,
)
from shardq.consumer.waiting.registry import Waiter
from shardq.consumer.waiting.strategy import AskLengths, Sleep, WaitStrategy
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.drivers.sync import Driver
from shardq.errors import LeaseLost, ShardqError
from shardq.model.checks import duration_ms
from shardq.model.task import Delivery
from shardq.operation import run

log = logging.getLogger("shardq.consumer")

GIVE_BACK_S = 1.0
"""The bound of each trip that gives back an interrupted claim: whoever pressed Ctrl-C waits."""


class Consumer:
    """Claims ready tasks of its topics, the first topic first, and settles them. For one thread at a time.

    >>> for delivery in consumer.claim(100, wait=1.0):
    ...     handle(delivery.payload)
    ...     consumer.ack(delivery)
    """

    def __init__(self, driver: Driver, claims: Claims, wakeups: Callable[[], Wakeups]) -> None:
        self._driver = driver
        self._claims = claims
        self._wakeups = wakeups
        self._closed = False
        self._event: threading.Event | None = None

    def __repr__(self) -> str:
        return f"<Consumer {self._claims.name} of {self._claims.topics}>"

    def claim(self, max: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Returns up to ``max`` deliveries under a lease; waits up to ``wait`` seconds for the first of them."""
        check_claim(max, wait)
        if not wait:
            return self._claimed(max, self._claims.cache.topology.span())
        self._driver.check_open()
        wakeups, event = self._wakeups(), threading.Event()
        self._event = event
        waiter = self._claims.waiter = Waiter(self._claims.wanted_topics(), event.set)
        strategy = WaitStrategy(self._claims, wakeups, waiter, time.monotonic() + wait)
        wakeups.waiters.enter(waiter)
        try:
            while not self._closed and (step := strategy.step(time.monotonic())) is not None:
                if isinstance(step, Sleep):
                    event.wait(step.seconds)
                    event.clear()
                    continue
                if isinstance(step, AskLengths):
                    run(self._driver, ask_lengths(self._claims, step.shards, wakeups))
                    continue
                if deliveries := self._claimed(max, step.shards, wakeups if step.registering else None):
                    return deliveries
            return []
        finally:
            wakeups.waiter_left(waiter, self._claims.planner.left(self._claims.cache.topology.span()))

    def _claimed(self, max: int, shards: Sequence[int], wakeups: Wakeups | None = None) -> list[Delivery]:
        notes = ClaimNotes()
        try:
            return run(self._driver, claim(self._claims, notes, max, shards, wakeups))
        except ShardqError:
            raise
        except BaseException:
            # Ctrl-C: nobody will handle what was claimed meanwhile.
            run(self._driver, give_back(self._claims, notes), GIVE_BACK_S)
            raise

    def close(self) -> None:
        """Ends a claim that waits. May be called from any thread. Later claims do not wait."""
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
            # Another consumer has it, which is no reason to end the loop.
            log.warning("%s", exc)

    def ack(self, deliveries: Delivery | Iterable[Delivery]) -> None:
        """Removes tasks that are done. Raises LeaseLost for those given to another consumer meanwhile, and SettleError
        when some shards could not be told; the rest are done.
        """
        by_shard = {shard: (acks, ()) for shard, acks in acks_by_shard(one_or_many(deliveries)).items()}
        check_held(run(self._driver, settle(self._claims, by_shard)), replaced_is_fine=True)

    def retry(
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
        check_held(run(self._driver, settle(self._claims, by_shard)), replaced_is_fine=False)

    def bury(self, deliveries: Delivery | Iterable[Delivery], reason: str) -> None:
        """Makes tasks dead, for ``reason``. ``engine.requeue(id)`` brings one back."""
        by_shard = burials(one_or_many(deliveries), reason)
        check_held(run(self._driver, settle(self._claims, by_shard)), replaced_is_fine=False)

    def extend(self, deliveries: Delivery | Iterable[Delivery], seconds: float | dt.timedelta) -> None:
        """Lets the leases end ``seconds`` from now. Raises LeaseLost for those no longer held."""
        held = acks_by_shard(one_or_many(deliveries))
        lease_ms = duration_ms(seconds, "seconds")
        check_held(run(self._driver, extend(self._claims, held, lease_ms)), replaced_is_fine=False)
