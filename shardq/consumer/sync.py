"""The consumer for threads: what becomes of a claim that Ctrl-C interrupts. Its twin is ``aio``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from shardq.calls.consume import SettleStatus
from shardq.consumer.claim_notes import ClaimNotes
from shardq.consumer.claiming import GIVE_BACK_S, claim, give_back
from shardq.consumer.claims import Claims
from shardq.consumer.consuming_sync import Consuming
from shardq.consumer.settling import SettlementsByShard, settle
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError
from shardq.model.task import Delivery
from shardq.operation import run


class Consumer(Consuming):
    """Claims ready tasks of its topics, the first topic first, and settles them. For one thread at a time.

    >>> for delivery in consumer.claim(100, wait=1.0):
    ...     handle(delivery.payload)
    ...     consumer.ack(delivery)
    """

    def __init__(self, driver: Driver, claims: Claims, wakeups: Callable[[], Wakeups]) -> None:
        super().__init__(wakeups)
        self._driver = driver
        self._claims = claims

    def __repr__(self) -> str:
        return f"<Consumer {self._claims.name} of {self._claims.topics}>"

    def _opened(self) -> None:
        """It was made of an open engine."""

    def _new_event(self) -> threading.Event:
        return threading.Event()

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

    def _settled(
        self, by_shard: SettlementsByShard, *, surely: bool = False, timeout: float | None = None
    ) -> dict[str, SettleStatus]:
        return run(self._driver, settle(self._claims, by_shard), timeout)

    def _end(self, delivery: Delivery, done: bool) -> None:
        self._settle_one(delivery, done)
