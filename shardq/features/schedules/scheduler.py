"""The scheduler of a dispatcher process: a thread that pushes the occurrences of schedules in time.

It knows the schedules (``known``) as they were when it last read them: at its start, when the ``news`` say that one
changed, and when messages may have been missed. While there are none it waits, and asks nothing.

Every dispatcher has one. For each schedule they have an order, by the hash of their names with the schedule's: the
first pushes, and the others look a little later, one after the other, whether that was done. Nothing but the number of
requests hangs on that order: whoever comes, an occurrence is pushed once (``pushing_ahead``).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from shardq.core.drivers.sync import Driver
from shardq.core.operation import run
from shardq.core.topology_cache import TopologyCache
from shardq.errors import EngineClosed, ShardqError
from shardq.features.schedules.known import PACE_MS, KnownSchedules, Step

log = logging.getLogger("shardq.schedules")

CALL_TIMEOUT_S = 2.0
RETRY_S = 1.0

NAP_S = 20.0
"""The longest sleep while there is something to wait for: the server's clock may be set meanwhile. No request is made
after it.
"""

WHO = "the scheduler"
"""Its name where an outage is logged."""


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    pushed: int
    """Occurrences that this process has pushed."""
    problems: tuple[str, ...]


class Scheduler:
    """The scheduler of one process, started once and stopped once. ``clock_ms``: the clock of the control slot's
    master.
    """

    def __init__(
        self,
        driver: Driver,
        cache: TopologyCache,
        *,
        process: str,
        members: Callable[[], tuple[str, ...]],
        clock_ms: Callable[[], float],
    ) -> None:
        self._driver = driver
        self._clock_ms = clock_ms
        self._schedules = KnownSchedules(cache, process=process, members=members)
        self._news = threading.Event()
        self._ending = threading.Event()
        self._said: dict[str, str] = {}
        """Name → what was said of a schedule that can't be read, or computed, here."""
        self._refused: dict[str, str] = {}
        """Name → why its pushes fail."""
        self._failing = ""
        """The reason why the schedules can't be read or written now."""
        self._outage = False
        """True while an outage that was logged holds this up."""
        self.thread = threading.Thread(target=self._run, name="shardq-scheduler", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Tells the thread to end."""
        self._ending.set()
        self._news.set()

    def hear(self, message: str | None) -> None:
        """Takes a message of the ``news``; None: some may have been missed."""
        if self._schedules.hear(message):
            self._news.set()

    def members_changed(self) -> None:
        if self._schedules:
            self._news.set()

    def report(self) -> SchedulerReport:
        problems = [
            f"schedule {name!r} can't be computed by this process: {why}"
            for name, why in dict(self._schedules.problems).items()
        ]
        problems += [
            f"schedule {name!r} can't be pushed by this process: {why}" for name, why in dict(self._refused).items()
        ]
        if self._failing:
            problems.append(f"schedules can't be served by this process: {self._failing}")
        return SchedulerReport(self._schedules.pushed, tuple(problems))

    def _run(self) -> None:
        wait: float | None = 0.0
        ended_s = -math.inf
        try:
            while True:
                asked_s = time.monotonic()
                if self._news.wait(wait):
                    # who declares a thousand schedules sends as many news
                    pause = ended_s + PACE_MS / 1000 - time.monotonic()
                    left = math.inf if wait is None else asked_s + wait - time.monotonic()
                    self._ending.wait(max(0.0, min(pause, left)))
                self._news.clear()
                if self._ending.is_set():
                    return
                wait = self._guarded_step()
                ended_s = time.monotonic()
        finally:
            self._driver.outages.left(WHO)

    def _guarded_step(self) -> float | None:
        try:
            wait = self._step()
        except Exception as exc:
            self._schedules.hear(None)
            if self._ending.is_set() or isinstance(exc, EngineClosed):
                return RETRY_S
            said = self._driver.outages.failed(WHO, exc)
            self._outage |= said
            if not said and not self._failing:
                fields, trace = {"error": type(exc).__name__}, not isinstance(exc, ShardqError)
                log.error("schedules are not served, trying again: %s", exc, exc_info=trace, extra=fields)
            self._failing = str(exc) or type(exc).__name__
            return RETRY_S
        self._failing = ""
        if self._outage and not self._refused:
            self._outage = False
            self._driver.outages.over(WHO)
        return wait

    def _step(self) -> float | None:
        """Does what is to be done now. Returns how long to sleep; None: until there is news."""
        done = run(self._driver, self._schedules.step(int(self._clock_ms())), CALL_TIMEOUT_S)
        self._tell(done)
        if math.isinf(done.again_ms):
            return None
        return min(NAP_S, max(0.0, (done.again_ms - self._clock_ms()) / 1000))

    def _tell(self, done: Step) -> None:
        """Logs what is new of schedules that can't be served, and what is over."""
        problems = self._schedules.problems | self._schedules.unreadable
        for name in problems.keys() - self._said.keys():
            what = "schedule %r can't be %s here, and is left to other dispatchers: %s"
            verb = "read" if name in self._schedules.unreadable else "computed"
            log.error(what, name, verb, problems[name], extra={"schedule": name})
        self._said = problems
        for name in done.served & self._refused.keys() - done.errors.keys():
            del self._refused[name]
            log.warning("schedule %r is pushed again", name, extra={"schedule": name})
        for name, error in done.errors.items():
            said = self._driver.outages.failed(WHO, error)
            self._outage |= said
            if name not in self._refused and not said:
                fields = {"schedule": name, "error": type(error).__name__}
                log.error("schedule %r can't be pushed, trying again: %s", name, error, extra=fields)
            self._refused[name] = str(error)
