"""The source of a delivery loop with many topics: claims from those that are known to have something, many of them in
one trip to each node. A topic that gives nothing goes to the ``lookout``, which rouses it again; one that may not be
handled now, or has no room, waits here.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

from shardq.core.consumer.claim_state import CONTENDED_S, ClaimNotes, Claims
from shardq.core.consumer.claiming import MOST_TOPICS, claim
from shardq.core.drivers.sync import Driver
from shardq.core.model.task import Delivery
from shardq.core.operation import run
from shardq.delivery.fetching import Start
from shardq.delivery.handler import Handler
from shardq.delivery.in_flight import InFlight
from shardq.delivery.job import Lot
from shardq.delivery.lookout import Lookout
from shardq.delivery.prefetch import BatchRoom

MOST = 2000
"""So many tasks of all topics are enough for a trip."""

MOST_RESTING = 64
"""The sinks that stay connected without tasks to send, at most."""


class Gated(Protocol):
    """Tells when a topic may be handled."""

    @property
    def pause_s(self) -> float:
        """The time until it may be."""

    @property
    def is_trying(self) -> bool:
        """True if it is tried after it could not be handled."""

    def tries_in_vain(self) -> float | None:
        """Notes that there is no task to try it with. Returns the time for which one is still waited for."""


class ManyHandler(Protocol):
    """The handler of a topic, with its room."""

    @property
    def is_coroutine(self) -> bool: ...

    @property
    def handler(self) -> Handler: ...

    @property
    def room(self) -> BatchRoom: ...

    @property
    def gate(self) -> Gated: ...

    @property
    def is_idle(self) -> bool:
        """True if it is connected, and has nothing to do."""

    def wanted(self) -> int:
        """How many tasks are to be claimed now."""


class Served(Protocol):
    """A topic that has had a task."""

    @property
    def gate(self) -> Gated: ...

    def ready(self) -> ManyHandler | None:
        """Its handler, which is made if there is none; None: it can't be made now, and its gate has a pause."""


class Roused:
    """Topics that are claimed now, or at a time that is known."""

    def __init__(
        self,
        in_flight: InFlight,
        driver: Driver,
        claims: Claims,
        lookout: Lookout,
        served: Callable[[str], Served | None],
        *,
        places: Callable[[bool], int],
        start: Start,
        disconnect: Callable[[str], object],
    ) -> None:
        """``places``: how many threads could begin with a batch, of slow sinks (True) or quick ones. ``disconnect``: of
        a sink that has nothing to do.
        """
        self._in_flight, self._driver, self._claims, self._lookout = in_flight, driver, claims, lookout
        self._served, self._places, self._start, self._disconnect = served, places, start, disconnect
        self._changed = threading.Condition(threading.RLock())
        self._heap: list[tuple[float, int, str]] = []
        self._numbers = itertools.count()
        self._at: dict[str, float] = {}
        """Topic → when it is to be claimed. Other entries of the heap are old."""
        self._full: set[str] = set()
        """Topics that have no room, until they say so."""
        self._for_place: tuple[deque[str], deque[str]] = deque(), deque()
        """Topics for whose batches there is no thread now, quick ones and slow ones."""
        self._in_vain: defaultdict[str, int] = defaultdict(int)
        """Topic → its claims in a row that gave nothing."""
        self._resting: dict[str, None] = {}
        """Topics that are connected and have nothing to do, the one that has rested longest first."""
        self._closed = False

    def rouse(self, topic: str, after_s: float = 0.0) -> None:
        """Has the topic claimed, now or after that time, if it is not to be earlier."""
        at = time.monotonic() + after_s
        with self._changed:
            self._full.discard(topic)
            if at < self._at.get(topic, at + 1.0):
                self._at[topic] = at
                heapq.heappush(self._heap, (at, next(self._numbers), topic))
                self._changed.notify()

    def room_freed(self, topic: str, gate: Gated) -> None:
        """Has the topic claimed if it waits for room; and if it could not be handled: some tasks are ready again."""
        if topic in self._full or gate.is_trying:  # without the lock: it says that it waits, and looks for room then
            self.rouse(topic)

    def place_freed(self) -> None:
        """Has topics claimed that wait for a thread."""
        with self._changed:
            for waiting in self._for_place:
                if waiting:
                    self.rouse(waiting.popleft())

    def forget(self, topic: str) -> None:
        """Claims nothing more of a topic: its route has ended."""
        with self._changed:
            self._at.pop(topic, None)
            self._full.discard(topic)
            self._in_vain.pop(topic, None)
            self._resting.pop(topic, None)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ---- the thread

    def step(self) -> bool:
        """Claims once something is roused. Returns False when no more is to be claimed."""
        while topics := self._due():
            try:
                if wants := self._wants(topics):
                    return self._claim(wants)
            except BaseException:
                for topic in topics:
                    self.rouse(topic)
                raise
        return not self._closed

    def _due(self) -> list[str]:
        """Waits until topics are to be claimed, and takes them. Empty: it is closed."""
        with self._changed:
            while not self._closed:
                now, due = time.monotonic(), list[str]()
                while self._heap and self._heap[0][0] <= now and len(due) < MOST_TOPICS:
                    at, _, topic = heapq.heappop(self._heap)
                    if self._at.get(topic) == at:
                        del self._at[topic]
                        due.append(topic)
                if due:
                    return due
                self._changed.wait(self._heap[0][0] - now if self._heap else None)
            return []

    def _wants(self, topics: Sequence[str]) -> dict[str, tuple[ManyHandler, int]]:
        """Of what there is room, and how much is claimed."""
        wants = dict[str, tuple[ManyHandler, int]]()
        free, total = {slow: self._places(slow) for slow in (False, True)}, 0
        for topic in topics:
            served = self._served(topic)
            if served is None:
                continue
            if served.gate.pause_s or (handler := served.ready()) is None:
                self.rouse(topic, served.gate.pause_s)
                continue
            with self._changed:
                self._full.add(topic)  # before the look: it may get room meanwhile
            if not (most := handler.wanted()):
                if served.gate.pause_s:
                    self.rouse(topic, served.gate.pause_s)
                continue
            with self._changed:
                self._full.discard(topic)
                if not handler.is_coroutine and (free[False] <= 0 or free[handler.room.is_slow] <= 0):
                    self._for_place[handler.room.is_slow].append(topic)
                    continue
            if total >= MOST:
                self.rouse(topic)
                continue
            if not handler.is_coroutine:
                free[False] -= 1
                free[True] -= handler.room.is_slow
            wants[topic] = handler, most
            total += most
        with self._changed:
            for slow, waiting in enumerate(self._for_place):  # what was woken for a place may have had no use for it
                for _ in range(min(free[bool(slow)], len(waiting))):
                    self.rouse(waiting.popleft())
        return wants

    def _claim(self, wants: dict[str, tuple[ManyHandler, int]]) -> bool:
        for topic in wants:
            self._lookout.leave(topic)
            self._resting.pop(topic, None)
        most = {topic: each for topic, (_, each) in wants.items()}
        by_topic: dict[str, list[Delivery]] = {topic: [] for topic in wants}
        shards = self._claims.cache.topology.span()
        steps = claim(self._claims, ClaimNotes(), sum(most.values()), shards, wants=most)
        for delivery in run(self._driver, steps, self._driver.settings.timeout):
            by_topic[delivery.topic].append(delivery)
        lots = [
            Lot.of(handler.handler, deliveries, handler.room)
            for topic, (handler, _) in wants.items()
            if (deliveries := by_topic[topic])
        ]
        late = [lot for lot in lots if not self._in_flight.put_lot(lot)]
        for lot in late:
            self._in_flight.end_lot(lot)
        if late:
            return False
        self._start(lots)
        for topic, deliveries in by_topic.items():
            if deliveries:
                self._in_vain.pop(topic, None)
                self.rouse(topic)
            else:
                self._found_nothing(topic, wants[topic][0])
        return True

    def _found_nothing(self, topic: str, handler: ManyHandler) -> None:
        """Has tasks looked for."""
        now, claims = time.monotonic(), self._claims
        if topic in claims.on_hold:
            self.rouse(topic, max(CONTENDED_S, claims.hold_ends_in(now)))
        elif not claims.open_topics(claims.cache.topology, [topic]):
            pass  # it is paused, or served no more: another topology rouses it
        elif (at := claims.limiter.denied(claims.waiter).get(topic, 0.0)) > now:
            self._lookout.await_permits(topic)
            self.rouse(topic, at - now)
        elif claims.planner.known(topic, claims.cache.topology.span()):
            self.rouse(topic, CONTENDED_S)  # others were quicker, or there was too much of others
        else:
            self._in_vain[topic] += 1
            self._lookout.look_at([topic], after_s=0.0 if self._in_vain[topic] == 1 else CONTENDED_S)
        if pause_s := handler.gate.pause_s:
            self.rouse(topic, pause_s)
        elif handler.gate.is_trying and not handler.room.tasks:
            if (left_s := handler.gate.tries_in_vain()) is not None:
                self.rouse(topic, left_s)
        elif handler.is_idle:
            with self._changed:
                self._resting[topic] = None
                oldest = next(iter(self._resting)) if len(self._resting) > MOST_RESTING else None
                if oldest is not None:
                    del self._resting[oldest]
            if oldest is not None:
                self._disconnect(oldest)
