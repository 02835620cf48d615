"""The scheduler of a dispatcher process: a thread that pushes the occurrences of schedules in time.

It knows the schedules (``known``) as they were when it last read them: at its start, when the ``news`` say that one
changed, and when messages may have been missed. While there are none it waits, and asks nothing.

Every dispatcher has one. For each schedule they have an order, by the hash of their names with the schedule's: the
first pushes, and the others look a little later, one after the other, if that was done. That order only saves requests:
an occurrence is pushed once in any (``pushing_ahead``).
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass
from functools import partial

from shardq.core.drivers.sync import Driver
from shardq.core.operation import run
from shardq.core.threads import Loop, Peers, SideThread
from shardq.core.topology_cache import TopologyCache
from shardq.errors import EngineClosed
from shardq.features.schedules.known import PACE_MS, KnownSchedules, Step

log: logging.Logger = logging.getLogger("shardq.schedules")

CALL_TIMEOUT_S = 2.0

NAP_S = 20.0
"""The longest sleep while there is something to wait for: the server's clock may be set meanwhile. No request is made
after it.
"""

WHO = "the scheduler"  # its name where an outage is logged


@dataclass(frozen=True, slots=True)
class SchedulerReport:
    pushed: int  # occurrences that this process has pushed
    problems: tuple[str, ...]


class Scheduler(SideThread):
    """The scheduler of one process, started once and stopped once."""

    def __init__(self, driver: Driver, cache: TopologyCache, peers: Peers) -> None:
        self._driver = driver
        self._peers = peers
        self._schedules = KnownSchedules(cache, process=peers.process, members=lambda: peers.members)
        self._said: dict[str, str] = {}  # name → what was said of a schedule that can't be read, or computed, here
        self._refused: dict[str, str] = {}  # name → why its pushes fail
        self._ended_s = -math.inf  # when the last step ended that did not fail
        self._due_s = math.inf  # when the next one is due
        self.loop: Loop = Loop(
            "shardq-scheduler",
            self._step,
            log,
            fails="schedules are not served, trying again",
            works="schedules are served again",
            woken=self._woken,
            failed=self._failed,
            ended=partial(driver.outages.left, WHO),
        )

    def hear(self, message: str | None) -> None:
        if self._schedules.hear(message):
            self.loop.wake()

    def members_changed(self) -> None:
        if self._schedules:
            self.loop.wake()

    def report(self) -> SchedulerReport:
        problems = [
            f"schedule {name!r} can't be {done} by this process: {why}"
            for done, reasons in (("computed", self._schedules.problems), ("pushed", self._refused))
            for name, why in dict(reasons).items()
        ]
        # A process that found none keeps none waiting.
        if self.loop.fault and (self._schedules or self._ended_s == -math.inf):
            problems.append(f"schedules can't be served by this process: {self.loop.fault}")
        return SchedulerReport(self._schedules.pushed, tuple(problems))

    def _woken(self) -> None:
        """Lets some time pass between two steps: a process that declares a thousand schedules sends as many news."""
        self.loop.stopping.wait(max(0.0, min(self._ended_s + PACE_MS / 1000, self._due_s) - time.monotonic()))

    def _failed(self, exc: BaseException) -> bool:
        self._schedules.hear(None)
        return isinstance(exc, EngineClosed) or self._driver.outages.failed(WHO, exc)

    def _step(self) -> float | None:
        """Does what is to be done now. Returns how long to sleep; None: until there is news."""
        if self._peers.process not in self._peers.members:
            return NAP_S  # it can't read what is stored
        done = run(self._driver, self._schedules.step(int(self._peers.clock_ms())), CALL_TIMEOUT_S)
        self._tell(done)
        if not self._refused:
            self._driver.outages.over(WHO)
        self._ended_s, self._due_s = time.monotonic(), math.inf
        if math.isinf(done.again_ms):
            return None
        sleep_s = min(NAP_S, max(0.0, (done.again_ms - self._peers.clock_ms()) / 1000))
        self._due_s = self._ended_s + sleep_s
        return sleep_s

    def _tell(self, done: Step) -> None:
        """Logs what is new of schedules that can't be served, and what is over."""
        problems = self._schedules.problems | self._schedules.unreadable
        for name in problems.keys() - self._said.keys():
            verb = "read" if name in self._schedules.unreadable else "computed"
            text = "schedule %r can't be %s here, and is left to other dispatchers: %s"
            log.error(text, name, verb, problems[name], extra={"schedule": name})
        self._said = problems
        for name in done.served & self._refused.keys() - done.errors.keys():
            del self._refused[name]
            log.warning("schedule %r is pushed again", name, extra={"schedule": name})
        for name, error in done.errors.items():
            said = self._driver.outages.failed(WHO, error)
            if name not in self._refused and not said:
                fields = {"schedule": name, "error": type(error).__name__}
                log.error("schedule %r can't be pushed, trying again: %s", name, error, extra=fields)
            self._refused[name] = str(error)
