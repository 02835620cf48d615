"""Sends a worker's report, with its heartbeat: a thread for each worker, which sleeps between two of them. Called by
the worker's processor. Between two heartbeats it looks if any dispatcher lives: without one no task becomes ready, and
the worker says so.

Operators read the reports. A failure changes nothing for the worker, and is logged once.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from shardq.core.calls import control
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.report import Report, Reports
from shardq.core.fleet.serving import NO_DISPATCHER
from shardq.core.layout.keys import ControlKeys
from shardq.core.threads import Loop, ended
from shardq.errors import Unanswered, Unavailable

log = logging.getLogger("shardq.fleet")

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

    def __init__(self, driver: Driver, keys: ControlKeys, name: str, make: Callable[[float], Report]) -> None:
        self._driver = driver
        self._keys = keys
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
            now_ms = self._driver.call(control.clock_ms(self._keys), CALL_TIMEOUT_S)
            alive = self._driver.call(control.alive(self._keys, now_ms), CALL_TIMEOUT_S)
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
        call = control.report(self._keys, self._name, alive_ms=int(ALIVE_S * 1000), report=text, leave=leave)
        joined = self._driver.call(call, LEAVE_TIMEOUT_S if leave else CALL_TIMEOUT_S)
        self._reports.sent(text, now)
        if joined and not text and not leave:
            self._reports.forgotten()
            return True
        return False
