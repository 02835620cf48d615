"""A service under watch: tasks fall due, threads push, a consumer takes, and the fate of every task is known.

One process has the pollers, the pushing threads and the consumer, as a service that embeds the engine. Lateness is
measured of tasks that were pushed before, due at random instants, so that the wait of a push does not mix with the wait
of a dispatch. The servers' own stamps tell when each became ready (see ``bench.monitor``); the consumer's clock tells
when it was claimed.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from bench.figures import percentiles
from bench.monitor import Monitor
from bench.nodes.timeline import Arrival
from cluster.server import Server
from shardq import Engine, LeaseLost, Task
from shardq.core.producer.durable import Durability
from shardq.errors import DurabilityUnavailable, NotReplicated

LEAD_S = 2.0
"""The time from the push of these tasks until the first is due."""

LEASE_S = 5.0
"""Longer than a failover delays a claim, so that tasks that were claimed elsewhere meanwhile are not given out again;
and short, because tasks of a lost answer come back only after it."""

CLAIM = 100
WAIT_S = 0.2
"""The consumer notices within this time that it has to end."""

PAUSE_S = 0.04
"""A pushing thread waits so long between two pushes, so it makes at most 25 a second."""

SOON_S = 0.5
"""Pushed tasks are due at random instants within this time, so that some are always scheduled and some are not."""

GRACE_S = 15.0
"""The wait after the last was due: two leases and some more. Tasks that have not come by then are looked for."""


@dataclass(frozen=True, slots=True)
class Pushes:
    """The fate of the pushes of one kind."""

    acknowledged: int
    not_confirmed: int
    """They raised NotReplicated (stored, but it may not last) or DurabilityUnavailable (not stored)."""
    lost: int
    """Acknowledged, and neither given out nor still in the engine."""
    p50_ms: float
    p99_ms: float
    max_ms: float
    """The time of one push, from its call to its return."""


@dataclass(slots=True)
class _Record:
    """The record of one pushing thread."""

    durability: Durability | None
    ids: list[str] = field(default_factory=list)
    not_confirmed: int = 0
    took_ms: list[float] = field(default_factory=list)


class Flow:
    """It is made before its tasks fall due, is ``running`` while they do, and judges afterwards."""

    def __init__(self, engine: Engine, *, per_s: int, seconds: float) -> None:
        self.begin_s = time.time() + LEAD_S
        self.end_s = self.begin_s + seconds
        dues = [int((self.begin_s + random.uniform(0, seconds)) * 1000) for _ in range(int(per_s * seconds))]
        ids = engine.push_many([Task(0, at=due_ms / 1000) for due_ms in dues])
        self.dues: dict[str, float] = {id: due_ms / 1000 for id, due_ms in zip(ids, dues, strict=True)}
        self.claims: Counter[str] = Counter()
        """How often each task was given out."""
        self._engine = engine
        self._ready_s: dict[str, float] = {}
        self._claimed_s: dict[str, float] = {}
        self._records: list[_Record] = []
        self._pushed = threading.Event()
        self._consumed = threading.Event()

    def sleep_until(self, s: float) -> None:
        """Sleeps until so many seconds after the first could be due."""
        time.sleep(max(0.0, self.begin_s + s - time.time()))

    @contextlib.contextmanager
    def running(self, servers: Sequence[Server], *, plain: int, replicated: int = 0) -> Iterator[None]:
        """Starts so many threads that push in each way, and a consumer. The end of the block waits for all of them."""
        self._records = [*(_Record(None) for _ in range(plain)), *(_Record("replicated") for _ in range(replicated))]
        with Monitor(servers) as monitor, ThreadPoolExecutor(len(self._records) + 1) as threads:
            try:  # from here on: a Ctrl-C may come while they start
                pushing = [threads.submit(self._push, record) for record in self._records]
                consuming = threads.submit(self._consume)
                yield
                time.sleep(max(0.0, self.end_s - time.time()))
                self._pushed.set()
                for run in pushing:
                    run.result()
                self._drain(over=consuming.done)
            finally:
                self._pushed.set()
                self._consumed.set()
            consuming.result()
        for command in monitor.executed():
            if command.in_script and command.words[0].upper() == b"RPUSH":
                for word in command.words[2:]:
                    at_s = command.at_us / 1e6
                    id = word.decode()
                    self._ready_s[id] = min(at_s, self._ready_s.get(id, at_s))

    def ready(self, *, origin_s: float, ids: Iterable[str] | None = None) -> list[Arrival]:
        """Returns when each of the tasks pushed before first became ready; instants count from ``origin_s``."""
        return self._arrivals(self._ready_s, origin_s, ids)

    def claimed(self, *, origin_s: float, ids: Iterable[str] | None = None) -> list[Arrival]:
        """Returns when each of them was first given out."""
        return self._arrivals(self._claimed_s, origin_s, ids)

    def pushes(self, durability: Durability | None) -> Pushes:
        records = [record for record in self._records if record.durability == durability]
        ids = [id for record in records for id in record.ids]
        took = percentiles([round(ms, 3) for record in records for ms in record.took_ms])
        return Pushes(
            acknowledged=len(ids),
            not_confirmed=sum(record.not_confirmed for record in records),
            lost=self.lost(ids),
            p50_ms=took["p50"],
            p99_ms=took["p99"],
            max_ms=took["max"],
        )

    def lost(self, ids: Collection[str]) -> int:
        """Returns how many were never given out, and are not in the engine either."""
        return sum(self._engine.get(id) is None for id in ids if id not in self.claims)

    def _arrivals(self, came_s: Mapping[str, float], origin_s: float, ids: Iterable[str] | None) -> list[Arrival]:
        wanted = self.dues if ids is None else ids
        return [Arrival(self.dues[id] - origin_s, came_s[id] - origin_s) for id in wanted if id in came_s]

    def _push(self, record: _Record) -> None:
        while not self._pushed.wait(PAUSE_S):
            began = time.perf_counter()
            try:
                delay = random.uniform(0, SOON_S)
                record.ids.append(self._engine.push(0, delay=delay, durability=record.durability))
            except (NotReplicated, DurabilityUnavailable):
                record.not_confirmed += 1
            record.took_ms.append((time.perf_counter() - began) * 1000)

    def _consume(self) -> None:
        consumer = self._engine.consumer(lease=LEASE_S)
        while not self._consumed.is_set():
            deliveries = consumer.claim(CLAIM, wait=WAIT_S)
            now_s = time.time()
            for delivery in deliveries:
                self.claims[delivery.id] += 1
                self._claimed_s.setdefault(delivery.id, now_s)
            # a task whose lease was lost comes again, and is counted then
            with contextlib.suppress(LeaseLost):
                consumer.ack(deliveries)

    def _drain(self, over: Callable[[], bool]) -> None:
        """Waits until everything that was acknowledged has come, but no longer than it may take."""
        expected = {*self.dues, *(id for record in self._records for id in record.ids)}
        deadline = time.monotonic() + GRACE_S
        while not over() and not expected <= self.claims.keys() and time.monotonic() < deadline:
            time.sleep(0.05)
