"""The consumer for threads: what becomes of a claim that Ctrl-C interrupts. Its twin is ``aio``."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from shardq.calls.consume import SettleStatus
from shardq.consumer.claim_notes import ClaimNotes
from shardq.consumer.claiming import claim, give_back
from shardq.consumer.consuming_sync import Consuming
from shardq.consumer.settling import SettlementsByShard, settle
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.errors import ShardqError
from shardq.model.task import Delivery
from shardq.operation import run

GIVE_BACK_S = 1.0
"""The bound of each trip that gives back an interrupted claim: whoever pressed Ctrl-C waits."""


class Consumer(Consuming):
    """Claims ready tasks of its topics, the first topic first, and settles them. For one thread at a time.

    >>> for delivery in consumer.claim(100, wait=1.0):
    ...     handle(delivery.payload)
    ...     consumer.ack(delivery)
    """

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

    def _settled(self, by_shard: SettlementsByShard) -> dict[str, SettleStatus]:
        return run(self._driver, settle(self._claims, by_shard))

    def _end(self, delivery: Delivery, done: bool) -> None:
        self._settle_one(delivery, done)
