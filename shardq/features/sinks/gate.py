"""The gate of one route: whether its sink may be asked, and what became of its tasks so far."""

from __future__ import annotations

import logging
import time

from shardq.core.fleet.report import RouteStats
from shardq.core.layout.topology import Route
from shardq.features.sinks.base import Circuit

log: logging.Logger = logging.getLogger("shardq.sinks")

TRIED = 10
"""Tasks with which a sink that was down is tried."""

TRYING_S = 1.0
"""How long to wait for tasks to try it with; if there are none, nothing is wrong any more."""


class Gate:
    """While a sink is down nothing is claimed for it: tasks stay ready. What was claimed is given back, which counts no
    attempt.
    """

    def __init__(self, topic: str, route: Route) -> None:
        self.topic = topic
        self.route = route
        self.counts: dict[str, int] = dict.fromkeys(("sent", "failed", "retried", "buried"), 0)
        self.taken = 0
        """The tasks that the sink has taken, or decided about for good."""
        self._circuit = Circuit()
        self._trying_until: float | None = None

    @property
    def error(self) -> str:
        """Why the sink is down; empty while it works."""
        return self._circuit.error

    @property
    def is_trying(self) -> bool:
        """True if the sink was down, and it has not taken a task since."""
        return self._circuit.state != "closed"

    @property
    def pause_s(self) -> float:
        """The time until the sink may be asked."""
        return self._circuit.pause_s()

    def stats(self, defect: str = "") -> RouteStats:
        """``defect``: what fails for every route."""
        state, error = self._circuit.state, self.error or defect
        return RouteStats(topic=self.topic, to=self.route.shown, circuit=state, error=error, **self.counts)

    def is_down(self, reason: str, again_s: float = 0.0) -> None:
        """Opens it. What was under way then opens it no further."""
        if not self.error:
            text = "topic %r can't be forwarded to %s, trying again; its tasks wait: %s"
            log.error(text, self.topic, self.route.named, reason, extra={"topic": self.topic})
        self._trying_until = None
        if again_s > self.pause_s or not self.pause_s:
            self._circuit.failed(reason, again_s)

    def works(self) -> None:
        """Closes it, unless it was opened since: by what was sent later."""
        self._trying_until = None
        if self.pause_s:
            return
        if self.error:
            log.warning("topic %r is forwarded to %s again", self.topic, self.route.named, extra={"topic": self.topic})
        self._circuit.worked()

    def tries_in_vain(self) -> float | None:
        """Notes that there is no task to try it with. Returns the time for which one is still waited for."""
        now = time.monotonic()
        self._trying_until = self._trying_until or now + TRYING_S
        if now < self._trying_until:
            return self._trying_until - now
        self.works()
        return None
