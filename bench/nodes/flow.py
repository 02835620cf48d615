"""A service under watch: tasks fall due, threads push, a consumer takes, and of every task is known what became of it.

One process has the pollers, the pushing threads and the consumer, as a service that embeds the engine. The tasks whose
lateness is told were pushed before, due at random instants: what a push waits is not mixed up with what a dispatch
waits. When each became ready is the servers' own stamp (see ``bench.monitor``); when it was claimed, the consumer's.
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
from shardq import DurabilityUnavailable, Engine, LeaseLost, NotReplicated, Task
from shardq.producer.durable import Durability

LEAD_S = 2.0
"""From the push of what will fall due to the first of it."""

LEASE_S = 5.0
"""Longer than a failover holds a claim up, so that what was claimed elsewhere meanwhile is not given out again; and
short, because what a lost answer gave out comes back only then."""

CLAIM = 100
WAIT_S = 0.2
"""Also how soon the consumer notices that it is to end."""

PAUSE_S = 0.04
"""Of a pushing thread between two pushes: at most 25 a second each."""

SOON_S = 0.5
"""Pushed tasks are due at random instants within this: some are scheduled and some not, whenever something happens."""

GRACE_S = 15.0
"""After the last was due: two leases, and some more. What has not come by then is looked for."""


@dataclass(frozen=True, slots=True)
class Pushes:
    """What became of the pushes of one kind."""

    acknowledged: int
    not_confirmed: int
    """Raised NotReplicated, stored, but the caller knows that it may not last; or DurabilityUnavailable, not stored."""
    lost: int
    """Acknowledged, and neither given out nor still in the engine."""
    p50_ms: float
    p99_ms: float
    max_ms: float
    """Of one push, from its call to its return."""


@dataclass(slots=True)
class _Record:
    """Of one pushing thread."""

    durability: Durability | None
    ids: list[str] = field(default_factory=list)
    not_confirmed: int = 0
    took_ms: list[float] = field(default_factory=list)


class Flow:
    """Made before its tasks fall due, ``running`` while they do, judged afterwards."""

    def __init__(self, engine: Engine, *, per_s: int, seconds: float) -> None:
        self.begin_s = time.time() + LEAD_S
        self.end_s = self.begin_s + seconds
        dues = [int((self.begin_s + random.uniform(0, seconds)) * 1000) for _ in range(int(per_s * seconds))]
        ids = engine.push_many([Task(0, at=due_ms / 1000) for due_ms in dues])
        self.dues: dict[str, float] = {id: due_ms / 1000 for id, due_ms in zip(ids, dues, strict=True)}
        self.claims: Counter[str] = Counter()
        """How often each was given out."""
        self._engine = engine
        self._ready_s: dict[str, float] = {}
        self._claimed_s: dict[str, float] = {}
        self._records: list[_Record] = []
        self._pushed = threading.Event()
        self._consumed = threading.Event()

    def sleep_until(self, s: float) -> None:
        """Until so many seconds after the first could be due."""
        time.sleep(max(0.0, self.begin_s + s - time.time()))

    @contextlib.contextmanager
    def running(self, servers: Sequence[Server], *, plain: int, replicated: int = 0) -> Iterator[None]:
        """So many threads push in each way, and a consumer takes; at the end of the block, all of it is waited for."""
        self._records = [*(_Record(None) for _ in range(plain)), *(_Record("replicated") for _ in range(replicated))]
        with Monitor(servers) as monitor, ThreadPoolExecutor(len(self._records) + 1) as threads:
            pushing = [threads.submit(self._push, record) for record in self._records]
            consuming = threads.submit(self._consume)
            try:
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
        """When each of the tasks pushed before became ready first; instants count from ``origin_s``."""
        return self._arrivals(self._ready_s, origin_s, ids)

    def claimed(self, *, origin_s: float, ids: Iterable[str] | None = None) -> list[Arrival]:
        """When each of them was given out first."""
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
        """How many were never given out, and are not in the engine either."""
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
            # what is held no longer comes again, and is counted
            with contextlib.suppress(LeaseLost):
                consumer.ack(deliveries)

    def _drain(self, over: Callable[[], bool]) -> None:
        """Until everything has come that was acknowledged, or for as long as that may take."""
        expected = {*self.dues, *(id for record in self._records for id in record.ids)}
        deadline = time.monotonic() + GRACE_S
        while not over() and not expected <= self.claims.keys() and time.monotonic() < deadline:
            time.sleep(0.05)
