# Generated from consuming_aio.py by `make fmt`: change that one.
"""The commands of a consumer: claiming, waiting, settling. ``Consumer`` inherits them."""

from __future__ import annotations

import datetime as dt
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from shardq.calls.consume import SettleStatus
from shardq.consumer.arguments import ITERATION_WAIT_S, burials, check_claim, retries
from shardq.consumer.claiming import ask_lengths
from shardq.consumer.claims import Claims
from shardq.consumer.settling import SettlementsByShard, acks_by_shard, check_held, extend, one_or_many
from shardq.consumer.waiting.registry import Waiter
from shardq.consumer.waiting.strategy import AskLengths, Sleep, WaitStrategy
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.errors import LeaseLost
from shardq.model.checks import duration_ms
from shardq.model.task import Delivery
from shardq.operation import run

if TYPE_CHECKING:
    from shardq.drivers.sync import Driver

log = logging.getLogger("shardq.consumer")


class Event(Protocol):
    """A waiting claim sleeps on it. Any thread may set it."""

    def set(self) -> None: ...

    def clear(self) -> None: ...

    def wait(self, seconds: float, /) -> object: ...


class Consuming(ABC):
    """The commands of ``Consumer``."""

    def __init__(self, driver: Driver, claims: Claims, wakeups: Callable[[], Wakeups]) -> None:
        self._driver = driver
        self._claims = claims
        self._wakeups = wakeups
        self._closed = False
        self._event: Event | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._claims.name} of {self._claims.topics}>"

    @abstractmethod
    def _new_event(self) -> Event: ...

    @abstractmethod
    def _claimed(self, max: int, shards: Sequence[int], wakeups: Wakeups | None = None) -> list[Delivery]: ...

    @abstractmethod
    def _settled(self, by_shard: SettlementsByShard) -> dict[str, SettleStatus]: ...

    @abstractmethod
    def _end(self, delivery: Delivery, done: bool) -> None: ...

    def claim(self, max: int = 1, *, wait: float = 0.0) -> list[Delivery]:
        """Returns up to ``max`` deliveries under a lease; waits up to ``wait`` seconds for the first of them.

        >>> deliveries = consumer.claim(100, wait=1.0)
        """
        check_claim(max, wait)
        if not wait:
            return self._claimed(max, self._claims.cache.topology.span())
        self._driver.check_open()
        wakeups = self._wakeups()
        event = self._event = self._new_event()
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

    def close(self) -> None:
        """Ends a claim that waits. May be called from any thread. Later claims do not wait.

        >>> consumer.close()
        """
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

    def _settle_one(self, delivery: Delivery, done: bool) -> None:
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

        >>> consumer.ack(deliveries)
        """
        by_shard: SettlementsByShard = {s: (acks, ()) for s, acks in acks_by_shard(one_or_many(deliveries)).items()}
        check_held(self._settled(by_shard), replaced_is_fine=True)

    def retry(
        self,
        deliveries: Delivery | Iterable[Delivery],
        *,
        delay: float | dt.timedelta = 0,
        reason: str = "retried",
    ) -> None:
        """Schedules tasks again after ``delay``, as failed attempts. A task without attempts left is dead, for
        ``reason``.

        >>> consumer.retry(delivery, delay=60, reason="the mail server is busy")
        """
        by_shard = retries(one_or_many(deliveries), delay, reason, self._claims.max_attempts)
        check_held(self._settled(by_shard), replaced_is_fine=False)

    def bury(self, deliveries: Delivery | Iterable[Delivery], reason: str) -> None:
        """Makes tasks dead, for ``reason``. ``engine.requeue(id)`` brings one back.

        >>> consumer.bury(delivery, "no such address")
        """
        by_shard = burials(one_or_many(deliveries), reason)
        check_held(self._settled(by_shard), replaced_is_fine=False)

    def extend(self, deliveries: Delivery | Iterable[Delivery], seconds: float | dt.timedelta) -> None:
        """Lets the leases end ``seconds`` from now. Raises LeaseLost for those no longer held.

        >>> consumer.extend(delivery, 60)
        """
        held = acks_by_shard(one_or_many(deliveries))
        lease_ms = duration_ms(seconds, "seconds")
        check_held(run(self._driver, extend(self._claims, held, lease_ms)), replaced_is_fine=False)
