"""The trial that ``demo`` shows: one run of many tasks through an engine, with a ledger that accounts for each of them.

A producer pushes numbered tasks, each with the instant at which it is due; the engine's pollers move them; takers
claim and acknowledge them. Nothing here prints.

Early is judged twice. The dispatch scripts say how late they were, by their server's clock. And the trial does not
take their word: it chooses each due instant itself, puts it into the payload as well, and compares it with the server's
clock when it has the task in its hands.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from shardq.cli.demo.clock import Clock
from shardq.engine import Engine, Stats
from shardq.model.task import Delivery, Task

TAKERS = 2
"""While one works on what it took, the other's claim is under way."""

CLAIM = 500
WAIT_S = 0.25
"""Also how soon a taker notices that it is to stop."""

FIRST_DUE_S = 0.5
"""The shortest delay: a task should have reached the server when it is due, else its way there would be measured."""

STALLED_S = 45.0
"""Without any progress for so long after the last task was due, the rest counts as lost. Longer than a lease: what a
claim gave out whose answer did not arrive comes back then.
"""

COUNTED_S = 1.0
"""After the last was taken: for a poller whose answer was under way to note how late its tasks were."""


@dataclass(frozen=True, slots=True)
class TrialResult:
    """The books at the end."""

    pushed: int
    dispatched: int
    taken: int
    early: int
    lost: int
    duplicates: int

    @property
    def good(self) -> bool:
        return self.pushed == self.dispatched == self.taken and not (self.early or self.lost or self.duplicates)


class Trial:
    """Started once, stopped once. ``clocks`` are the clocks of the masters, by shard."""

    def __init__(self, engine: Engine, clocks: Mapping[int, Clock], *, tasks: int, seconds: float) -> None:
        self.tasks = tasks
        self.pushed = 0
        self.failure: Exception | None = None
        """The error that ended one of the threads."""
        self._engine = engine
        self._clocks = clocks
        self._seconds = seconds
        self._taken = bytearray(tasks)
        """How often each number came; 255 stands for more."""
        self._early = 0
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._producer = self._thread("producer", self._produce)
        self._takers = [self._thread(f"taker-{n}", self._take) for n in range(TAKERS)]
        self._progress = (0, 0)
        self._last_due = time.monotonic()
        self._progressed = self._last_due

    def start(self) -> None:
        for thread in (*self._takers, self._producer):
            thread.start()

    def stop(self) -> None:
        self._ending.set()
        for thread in (self._producer, *self._takers):
            thread.join()

    @property
    def taken(self) -> int:
        return self.tasks - self._taken.count(0)

    @property
    def pushing(self) -> bool:
        return self._producer.is_alive()

    def over(self, stats: Stats, *, pushing: bool) -> bool:
        """True if nothing can come any more: every shard is empty, or nothing has moved for long.

        ``pushing`` is to be asked for before ``stats``: what is pushed in between is in neither.
        """
        now = time.monotonic()
        progress = (self.pushed, self.taken)
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

    def verdict(self, stats: Stats) -> TrialResult:
        taken = self.taken
        return TrialResult(
            pushed=self.pushed,
            dispatched=stats.dispatched,
            taken=taken,
            early=max(self._early, stats.lateness.early),
            lost=self.pushed - taken,
            duplicates=sum(self._taken) - taken,
        )

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                work()
            except Exception as exc:  # noqa: BLE001  kept, and told by whoever looks whether it is over
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

    def _take(self) -> None:
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
                self._taken[number] = min(255, self._taken[number] + 1)
                clock = self._clocks[delivery.shard]
                if clock.latest_ms(now_s) < due_ms:
                    clock.look()
                    self._early += clock.latest_ms(now_s) < due_ms
