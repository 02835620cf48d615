"""The claims of a loop: as many single deliveries as its places want, and a batch for each handler of batches that has
room. Each is a step of a thread of its own, as a claim waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from shardq.core.consumer.sync import Consumer
from shardq.delivery.handler import Handler
from shardq.delivery.in_flight import InFlight
from shardq.delivery.job import Job, Lot, Unit
from shardq.delivery.linger import Linger
from shardq.delivery.prefetch import BatchRoom

WAIT_S = 30.0
"""The wait of one claim; stopping ends it sooner."""

YIELD_S = 0.00005
"""A pause after jobs that idle threads take. Otherwise the next claim would be made first, while those threads wait for
Python's lock. From the claim's answer to the handler's first line it takes 0.23 ms, and 0.37 without.
"""

AGAIN_S = 0.05
"""The pause after a list was ripe and gave nothing: others were quicker, or its topic has a limit. Nothing is claimed
meanwhile: that would be the few tasks that have come since.
"""

Start = Callable[[Sequence[Unit]], None]
"""Hands units to the runners."""


class Source(Protocol):
    """What a thread of a loop fetches from."""

    def step(self) -> bool:
        """Claims once there is room. Returns False when no more is to be claimed."""

    def close(self) -> None:
        """Ends a wait. May be called from any thread."""


class Fetch:
    """Claims single deliveries."""

    def __init__(
        self, in_flight: InFlight, consumer: Consumer, handlers: Mapping[str, Handler], *, start: Start
    ) -> None:
        self._consumer = consumer
        self._in_flight = in_flight
        self._handlers = handlers
        self._start = start

    def close(self) -> None:
        """Ends a wait. May be called from any thread."""
        self._consumer.close()

    def step(self) -> bool:
        """Claims once there is room. Returns False when no more is to be claimed."""
        want = self._in_flight.wanted()
        if not want:
            return False
        deliveries = self._consumer.claim(want, wait=WAIT_S)
        now, handlers = time.monotonic(), self._handlers
        jobs = [
            Job(delivery, handler.of(delivery) if (handler := handlers[delivery.topic]).named else handler, now)
            for delivery in deliveries
        ]
        if not self._in_flight.put(jobs):
            self._in_flight.give_back(jobs)
            return False
        self._start(jobs)
        if 0 < len(jobs) < want:
            time.sleep(YIELD_S)
        return True


class BatchFetch:
    """Claims the batches of one handler."""

    def __init__(
        self,
        in_flight: InFlight,
        consumer: Consumer,
        linger: Linger | None,
        handler: Handler,
        *,
        places: int,
        start: Start,
    ) -> None:
        """``places``: those of the loop. ``linger``: the wait for a batch to fill; None: it takes what there is."""
        assert handler.batching is not None, "it is a handler of batches"
        self.topic: str = handler.topic
        self._consumer = consumer
        self._linger = linger
        self._in_flight = in_flight
        self._handler = handler
        self._size = handler.batching.size
        self._room = BatchRoom(min(handler.batching.places or places, places))
        self._start = start
        self._is_full = False
        """True if the last batch was full."""

    def close(self) -> None:
        """Ends a wait. May be called from any thread."""
        if self._linger is not None:
            self._linger.close()
        self._consumer.close()

    def step(self) -> bool:
        """Claims a batch once there is room. Returns False when no more is to be claimed."""
        if not self._in_flight.wanted_lot(self._room):
            return False
        # After a full batch there may be more, which has waited: it is looked for at once.
        if self._linger is not None and not self._is_full and not self._linger.wait(WAIT_S):
            return True
        deliveries = self._consumer.claim(self._size, wait=WAIT_S if self._linger is None else 0.0)
        was_full, self._is_full = self._is_full, len(deliveries) == self._size
        if not deliveries:
            if self._linger is not None and not was_full:
                self._linger.pause(AGAIN_S)
            return True
        lot = Lot.of(self._handler, deliveries, self._room)
        if not self._in_flight.put_lot(lot):
            self._in_flight.end_lot(lot)
            return False
        self._start([lot])
        return True
