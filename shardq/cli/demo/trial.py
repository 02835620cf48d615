"""The trial that ``demo`` shows: many tasks go through an engine, and each of them is accounted for.

A producer pushes numbered tasks, each with its due instant; the engine's pollers move them; consumers claim and
acknowledge them. Nothing here prints.

Tasks that are early are counted twice. The dispatch scripts say how late they were, by their server's clock. The trial
does not rely on that: it chooses each due instant itself, puts it into the payload, and compares it with the server's
clock when it has claimed the task.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from shardq.core.calls.request import Command
from shardq.core.drivers.sync import Driver
from shardq.core.model.task import Delivery, Task
from shardq.engine import Engine, Stats

CONSUMERS = 2
"""While one notes what it claimed, the other's claim is under way."""

CLAIM = 500
WAIT_S = 0.25
"""A consumer waits so long for tasks; it also notices so soon that it is to stop."""

FIRST_DUE_S = 0.5
"""The shortest delay. A task should have reached the server when it is due, or its way there would be measured."""

STALLED_S = 45.0
"""The rest counts as lost when nothing has moved for so long after the last task was due. Longer than a lease: tasks
come back then whose claim was not answered.
"""

COUNTED_S = 1.0
"""After the last claim, a poller whose answer is under way has so long to note how late its tasks were."""

CLOCK_TRIPS = 5
"""The quickest of a few trips bounds a server's clock best; on one machine that is to some ten microseconds."""


class Clock:
    """The clock of the master that serves a slot, read without the engine."""

    def __init__(self, driver: Driver, slot: int) -> None:
        self._driver = driver
        self._slot = slot
        self._lead_s = 0.0
        self.compare()

    def compare(self) -> None:
        """Compares it with ours. Called again when somebody may have set it."""
        # the server read its clock after we sent the question: its lead over ours is this or less
        lead_s = math.inf
        for _ in range(CLOCK_TRIPS):
            sent = time.monotonic()
            lead_s = min(lead_s, self._driver.call(Command(self._slot, ("TIME",), _seconds)) - sent)
        self._lead_s = lead_s

    def latest_ms(self, now_s: float) -> float:
        """The server's clock at an instant of ``time.monotonic()``, or a little more; never less."""
        return (now_s + self._lead_s) * 1000


def _seconds(answer: list[Any]) -> float:
    seconds, micros = answer
    return int(seconds) + int(micros) / 1e6


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The number of tasks of each kind at the end."""

    pushed: int
    dispatched: int
    claimed: int
    early: int
    lost: int
    duplicates: int

    @property
    def good(self) -> bool:
        return self.pushed == self.dispatched == self.claimed and not (self.early or self.lost or self.duplicates)


class Trial:
    """A trial, which runs in threads within its ``with`` block. ``clocks`` are the clocks of the masters, by shard."""

    def __init__(self, engine: Engine, clocks: Mapping[int, Clock], *, tasks: int, seconds: float) -> None:
        self.tasks = tasks
        self.pushed = 0
        self.failure: Exception | None = None
        """The error that ended one of the threads."""
        self._engine = engine
        self._clocks = clocks
        self._seconds = seconds
        self._claims = bytearray(tasks)
        """How often each number was claimed; 255 stands for more."""
        self._early = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._producer = self._thread("producer", self._produce)
        self._threads = [*(self._thread(f"consumer-{n}", self._consume) for n in range(CONSUMERS)), self._producer]
        self._progress = (0, 0)
        self._last_due = time.monotonic()
        self._progressed = self._last_due

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    @property
    def claimed(self) -> int:
        return self.tasks - self._claims.count(0)

    @property
    def pushing(self) -> bool:
        return self._producer.is_alive()

    def over(self, stats: Stats, *, pushing: bool) -> bool:
        """True if nothing can come any more: every shard is empty, or nothing has moved for long.

        ``pushing`` must be read before ``stats``: neither shows what is pushed in between.
        """
        now = time.monotonic()
        progress = (self.pushed, self.claimed)
        if progress != self._progress:
            self._progress, self._progressed = progress, now
        if self.failure is not None:
            return True
        if pushing:
            self._last_due = now + self._seconds
            return False
        stalled = now - max(self._progressed, self._last_due) > STALLED_S
        # a shard whose server did not answer in time has no counts
        empty = not (stats.scheduled or stats.ready or stats.leased or any(shard.error for shard in stats.shards))
        counted = stats.lateness.count >= stats.dispatched or now - self._progressed > COUNTED_S
        return stalled or (empty and counted)

    def result(self, stats: Stats) -> TrialResult:
        claimed = self.claimed
        return TrialResult(
            pushed=self.pushed,
            dispatched=stats.dispatched,
            claimed=claimed,
            early=max(self._early, stats.lateness.early),
            lost=self.pushed - claimed,
            duplicates=sum(self._claims) - claimed,
        )

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as exc:  # noqa: BLE001  kept, and raised by the command
                self.failure = self.failure or exc
                self._ending.set()

        return threading.Thread(target=guarded, name=f"shardq-demo-{name}", daemon=True)

    def _produce(self) -> None:
        for ids in self._engine.push_iter(self._numbered()):
            self.pushed += len(ids)

    def _numbered(self) -> Iterator[Task]:
        clock = self._clocks[0]
        for number in range(self.tasks):
            if self._ending.is_set():
                return
            due_ms = int(clock.latest_ms(time.monotonic()) + 1000 * random.uniform(FIRST_DUE_S, self._seconds)) + 1
            yield Task({"n": number, "due": due_ms}, at=due_ms / 1000)

    def _consume(self) -> None:
        consumer = self._engine.consumer()
        while not self._ending.is_set():
            deliveries = consumer.claim(CLAIM, wait=WAIT_S)
            self._note(deliveries)
            consumer.ack(deliveries)

    def _note(self, deliveries: list[Delivery]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for delivery in deliveries:
                number, due_ms = delivery.payload["n"], delivery.payload["due"]
                self._claims[number] = min(255, self._claims[number] + 1)
                clock = self._clocks[delivery.shard]
                if clock.latest_ms(now_s) < due_ms:
                    clock.compare()
                    self._early += clock.latest_ms(now_s) < due_ms
