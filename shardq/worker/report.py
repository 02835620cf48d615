"""The report of a worker, sent with its heartbeat. ``Tally`` counts the settlements that one thread sends, ``Outcomes``
the same by topic for the engine's metrics, ``Reporter`` sends, and looks between two heartbeats if any dispatcher
lives: without one no task becomes ready, and the worker says so.
"""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from shardq.core.calls import control
from shardq.core.calls.consume import SettleBury, SettleRetry
from shardq.core.calls.request import Stale
from shardq.core.consumer.settling import Settlement
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.lateness import Lateness, TopicLateness
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.fleet.report import LONG_S, Report, Reports, RunningTask, UnknownCall, by_topic, named
from shardq.core.operation import run
from shardq.core.threads import Loop, ended
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_upkeep import refresh
from shardq.delivery.handler import UNKNOWN_S
from shardq.delivery.job import Job, Lot, Outcome, Unit, outcome_of
from shardq.delivery.logs import MOST_REMEMBERED
from shardq.errors import Unanswered, Unavailable

STUCK_S = 600.0
"""A handler without a timeout that runs for longer counts as stuck."""

UNKNOWN_KEPT_S = 2.5 * UNKNOWN_S
"""A call that this worker does not know, and was not given for so long, is not reported any more: it comes again after
``UNKNOWN_S`` while nobody else takes it.
"""

DOUBLINGS = 18
"""Durations are counted up to 1 ms, 2 ms, 4 ms and so on, up to 131 s, and those above."""

SIZE_DOUBLINGS = 10
"""Sizes of batches are counted up to 1, 2, 4 and so on, up to 1,024."""


@dataclass(slots=True)
class Durations:
    """A histogram of durations. The bin ``n`` counts those below ``2**n`` ms that are in no bin before."""

    counts: list[int] = field(default_factory=lambda: [0] * (DOUBLINGS + 1))
    total_s: float = 0.0

    def note(self, seconds: float, count: int = 1) -> None:
        self.counts[min(int(seconds * 1000).bit_length(), DOUBLINGS)] += count
        self.total_s += seconds * count


@dataclass(slots=True)
class Sizes:
    """A histogram of the sizes of batches. The bin ``n`` counts those up to ``2**n`` that are in no bin before."""

    counts: list[int] = field(default_factory=lambda: [0] * (SIZE_DOUBLINGS + 1))
    total: int = 0

    def note(self, size: int) -> None:
        self.counts[min((size - 1).bit_length(), SIZE_DOUBLINGS)] += 1
        self.total += size


@dataclass(slots=True)
class TopicOutcomes:
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    handler: Durations = field(default_factory=Durations)
    """The time of a call of the handler."""
    batch: Sizes = field(default_factory=Sizes)
    """How many tasks a call of a handler of batches got."""
    pickup: Durations = field(default_factory=Durations)
    """The time from the answer to the claim to the handler's start."""


class Outcomes:
    """The outcomes in the workers of one engine in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicOutcomes] = {}

    def note(self, job: Job, outcome: Outcome, count: int = 1) -> None:
        """Counts a job that is finished, and others of its lot that are like it."""
        with self._lock:
            seen = self._of(job.delivery.topic)
            seen.outcomes[outcome] += count
            if job.began_at:
                if job.lot is None:
                    seen.handler.note(job.ended_at - job.began_at)
                seen.pickup.note(job.waited_s, count)

    def note_call(self, topic: str, size: int, seconds: float) -> None:
        """Counts a call of a handler of batches."""
        with self._lock:
            seen = self._of(topic)
            seen.handler.note(seconds)
            seen.batch.note(size)

    def _of(self, topic: str) -> TopicOutcomes:
        seen = self._topics.get(topic)
        if seen is None:
            seen = self._topics[topic] = TopicOutcomes()
        return seen

    def snapshot(self) -> dict[str, TopicOutcomes]:
        """The outcomes by topic so far."""
        with self._lock:
            return copy.deepcopy(self._topics)


@dataclass(slots=True)
class _Unknown:
    """The calls of a task that were given back. Monotonic instants."""

    since: float
    last: float
    count: int = 0


def _alike(settlements: Iterable[tuple[Job, Settlement]]) -> Iterator[tuple[Job, Settlement, int]]:
    """The jobs that are counted, each with how many are like it: in a row the jobs of a lot that ended in one way and
    began together are told by the last of them.
    """
    last: tuple[Job, Settlement] | None = None
    count = 0
    for each in settlements:
        job, settlement = each
        if last is not None:
            if (
                job.lot is not None
                and job.lot is last[0].lot
                and type(settlement) is type(last[1])
                and job.began_at == last[0].began_at
            ):
                last = each
                count += 1
                continue
            yield *last, count
        last, count = each, 1
    if last is not None:
        yield *last, count


class Tally:
    """One thread calls ``count``; any may call the others."""

    def __init__(
        self,
        topics: Collection[str],
        concurrency: int,
        *,
        tasks: Sequence[str],
        running: Callable[[], Sequence[Unit]],
        problems: Callable[[], Iterable[str]],
        key_waits: Callable[[], Mapping[str, Lateness]],
    ) -> None:
        """``tasks``: the named ones that the worker knows. ``problems``: the reasons why it is not healthy.
        ``key_waits``: how long the tasks had waited to which its settlements have handed a key.
        """
        self._topics = named(list(topics))
        self._tasks = tuple(tasks)
        self._concurrency = concurrency
        self._running = running
        self._problems = problems
        self._key_waits = key_waits
        self.outcomes: Outcomes | None = None
        """Counts by topic, for the engine's metrics; None: these were not asked for."""
        self._unknown: dict[tuple[str, str], _Unknown] = {}
        """Topic and name of a call that this worker does not know."""
        self._since = time.time()
        self._counts = Counter[Outcome]()
        self._batches_lock = threading.Lock()
        self._batches = 0
        self._batched = 0
        self._last_error = ""
        self._pickup = TopicLateness()

    def count(self, settlements: Iterable[tuple[Job, Settlement]]) -> None:
        """Counts jobs that are finished, whether or not their settlements reach the server. A job that is given back
        undone has no outcome.
        """
        waited: Counter[tuple[str, int]] = Counter()
        for job, settlement, count in _alike(settlements):
            if (outcome := outcome_of(settlement)) is not None:
                if self.outcomes is not None:
                    self.outcomes.note(job, outcome, count)
                if job.unknown is None:
                    self._counts[outcome] += count
                else:
                    self._met_unknown(job.delivery.topic, job.unknown)
            if isinstance(settlement, SettleRetry | SettleBury):
                self._last_error = settlement.reason.rpartition("\n")[2]
            if job.began_at:
                waited[job.delivery.topic, int(job.waited_s * 1000)] += count
        for (topic, ms), jobs in waited.items():
            self._pickup.note([(topic, jobs)], oldest_ms=ms, newest_ms=ms)

    def note_call(self, lot: Lot, size: int, seconds: float) -> None:
        """Counts a call of a handler of batches."""
        with self._batches_lock:
            self._batches += 1
            self._batched += size
        if self.outcomes is not None:
            self.outcomes.note_call(lot.first.topic, size, seconds)

    def _met_unknown(self, topic: str, task: str) -> None:
        if len(self._unknown) < MOST_REMEMBERED or (topic, task) in self._unknown:
            now = time.monotonic()
            met = self._unknown.setdefault((topic, task), _Unknown(now, now))
            met.last, met.count = now, met.count + 1

    def report(self, alive_s: float) -> Report:
        """The report of the worker; ``alive_s``: the time for which its heartbeat counts."""
        now, units = time.monotonic(), self._running()
        for key, met in list(self._unknown.items()):
            if now - met.last > UNKNOWN_KEPT_S:
                del self._unknown[key]
        return Report(
            since=self._since,
            alive_s=alive_s,
            topics=self._topics,
            concurrency=self._concurrency,
            running=len(units),
            tasks=self._tasks,
            unknown=tuple(
                UnknownCall(task=task, topic=topic, count=met.count, seconds=round(now - met.since, 1))
                for (topic, task), met in list(self._unknown.items())
            ),
            longest=tuple(
                RunningTask(id=unit.first.id, topic=unit.first.topic, seconds=round(now - unit.began_at, 1))
                for unit in units
                if now - unit.began_at >= LONG_S
            ),
            stuck=sum(now - unit.began_at > (unit.handler.timeout or STUCK_S) for unit in units),
            problems=tuple(self._problems()),
            handled=self._counts["done"],
            failed=self._counts["retried"] + self._counts["buried"],
            retried=self._counts["retried"],
            snoozed=self._counts["snoozed"],
            batches=self._batches,
            batched=self._batched,
            error=self._last_error,
            pickup=by_topic(self._pickup.snapshot()),
            key_wait=by_topic(self._key_waits()),
        )


log: logging.Logger = logging.getLogger("shardq.fleet")

BEAT_S = 10.0
ALIVE_S = 30.0
"""A worker that is silent for this long is not listed any more: three heartbeats. Nothing but the list goes by it;
its tasks come back when their leases run out.
"""

LOOK_S = 2.0
"""The time from a worker's start to its first look for dispatchers: a program may start its own meanwhile."""

CALL_TIMEOUT_S = 1.0
LEAVE_TIMEOUT_S = 0.25
"""Short, because a silent server must not hold up the end of a process: a worker that did not sign off is listed until
its time is over.
"""


class Reporter:
    """The reports of one worker, started once and stopped once."""

    def __init__(self, driver: Driver, cache: TopologyCache, name: str, make: Callable[[float], Report]) -> None:
        self._driver = driver
        self._cache = cache
        self._name = name
        self._reports = Reports(make)
        self._missing = 1
        """Looks in a row that found no dispatcher. The second of them is logged, as one that is started again is gone
        for a moment; at a worker's start the first is.
        """
        self._look_at = math.inf
        """When to look for dispatchers."""
        self._loop = Loop(
            "shardq-report",
            self._step,
            log,
            fails="this worker can't report, engine.fleet() does not list it, trying again",
            works="this worker reports again",
            # the threads that work with the server log that
            failed=lambda exc: isinstance(exc, Unavailable | Unanswered),
            longest_pause_s=BEAT_S,
        )

    def start(self) -> None:
        self._look_at = time.monotonic() + LOOK_S
        self._loop.start()

    def stop(self) -> None:
        """Ends the thread, and signs off."""
        self._loop.stop()
        if self._loop.thread is None:  # a system without threads to spare did not start it
            return
        ended([self._loop])
        try:
            self._send(leave=True)
        except Exception as exc:  # noqa: BLE001  the worker has ended all the same
            log.debug("the worker did not sign off: %s", exc)

    def _step(self) -> float:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + BEAT_S
            self._look_for_dispatchers()
        if self._send():
            return 0.0
        return min(BEAT_S, self._look_at - time.monotonic())

    def _look_for_dispatchers(self) -> None:
        try:
            now_ms = self._driver.call(control.clock_ms(self._cache.control), CALL_TIMEOUT_S)
            alive = self._driver.call(control.alive(self._cache.control, now_ms), CALL_TIMEOUT_S)
        except Exception as exc:  # noqa: BLE001  the report is sent nevertheless
            log.debug("it can't be told if a dispatcher runs: %s", exc)
            return
        self._missing = 0 if alive else self._missing + 1
        if self._missing == 2:
            log.warning("%s", NO_DISPATCHER)

    def _send(self, *, leave: bool = False) -> bool:
        """Sends one heartbeat. Returns True if the next is due at once."""
        now = time.monotonic()
        text = b"" if leave else self._reports.next(now, ALIVE_S)
        keys, epoch = self._cache.control, self._cache.topology.stamp
        call = control.report(keys, epoch, self._name, alive_ms=int(ALIVE_S * 1000), report=text, leave=leave)
        try:
            joined = self._driver.call(call, LEAVE_TIMEOUT_S if leave else CALL_TIMEOUT_S)
        except Stale:
            run(self._driver, refresh(self._cache), CALL_TIMEOUT_S)  # raises, unless our engine was begun anew
            return True
        self._reports.sent(text, now)
        if joined and not text and not leave:
            self._reports.forgotten()
            return True
        return False
