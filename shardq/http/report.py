"""The report of a gateway to the fleet: without it, ``health`` would say that no worker serves the topics that workers
over HTTP claim. Called by ``work``.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections import Counter

from shardq.core.drivers.sync import Driver
from shardq.core.fleet.report import Report, named
from shardq.core.topology_cache import TopologyCache
from shardq.http.settling import Wanted
from shardq.worker.report import Reporter

SERVED_S = 60.0
"""A topic counts as served for so long after a claim. A client waits 50 s at most, and then asks again."""

MOST_KEPT = 1000
"""Topics, before those that were not claimed lately are forgotten."""

NAME = "http"


class GatewayReport:
    """The counts of what one process has given out and settled. The loop notes them, the reporter's thread reads."""

    def __init__(self, places: int) -> None:
        """``places``: the claims that may wait at once."""
        self._places = places
        self._since = time.time()
        self._claimed: dict[str, float] = {}
        """Topic → when it was claimed last."""
        self._counts = Counter[str]()
        self._error = ""
        self._reporter: Reporter | None = None

    def note_claim(self, topics: tuple[str, ...]) -> None:
        now = time.monotonic()
        self._claimed |= dict.fromkeys(topics, now)
        if len(self._claimed) > MOST_KEPT:
            self._claimed = self._served(now)

    def note_settled(self, settled: list[Wanted]) -> None:
        for each in settled:
            self._counts[each.item.do] += 1
            if each.item.do in ("retry", "bury") and each.item.reason:
                self._error = each.item.reason.rpartition("\n")[2]

    def make(self, alive_s: float) -> Report:
        topics, counts = self._served(time.monotonic()), self._counts
        return Report(
            since=self._since,
            alive_s=alive_s,
            topics=named(topics),
            concurrency=self._places,
            handled=counts["ack"],
            failed=counts["retry"] + counts["bury"],
            retried=counts["retry"],
            snoozed=counts["snooze"] + counts["hold"],
            error=self._error,
        )

    def _served(self, now: float) -> dict[str, float]:
        return {topic: at for topic, at in self._claimed.copy().items() if now - at < SERVED_S}

    def start(self, driver: Driver, cache: TopologyCache) -> None:
        """Sends it from now on, by a thread."""
        name = f"{NAME}-{socket.gethostname()[:32]}-{secrets.token_hex(6)}"
        self._reporter = Reporter(driver, cache, name, self.make)
        self._reporter.start()

    def stop(self) -> None:
        """Signs off. Waits for the thread."""
        if self._reporter is not None:
            self._reporter.stop()
