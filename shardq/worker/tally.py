"""Counts what a worker has done, for its report: from the settlements that one thread sends, off the handlers' way."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from shardq.calls.consume import SettleBury, SettleRetry
from shardq.fleet.lateness import TopicLateness
from shardq.fleet.report import Report, by_topic, named
from shardq.worker.job import Job, Settlement, outcome_of


class Tally:
    """One thread calls ``count``; any may call ``report``."""

    def __init__(self, topics: Sequence[str], concurrency: int, *, running: Callable[[], int]) -> None:
        self._topics = named(topics)
        self._concurrency = concurrency
        self._running = running
        self._since = time.time()
        self._handled = 0
        self._failed = 0
        self._retried = 0
        self._snoozed = 0
        self._last_error = ""
        self._pickup = TopicLateness()

    def count(self, settlements: Iterable[tuple[Job, Settlement]]) -> None:
        """Counts jobs that are finished, whether or not their settlements reach the server."""
        waited: dict[tuple[str, int], int] = defaultdict(int)
        for job, settlement in settlements:
            outcome = outcome_of(settlement)
            if outcome == "done":
                self._handled += 1
            elif outcome == "snoozed":
                self._snoozed += 1
            elif isinstance(settlement, SettleRetry | SettleBury):
                self._failed += 1
                self._retried += outcome == "retried"
                self._last_error = settlement.reason.rpartition("\n")[2]
            if job.began_at:
                waited[job.delivery.topic, int(job.waited_s * 1000)] += 1
        for (topic, ms), jobs in waited.items():
            self._pickup.note([(topic, jobs)], oldest_ms=ms, newest_ms=ms)

    def report(self, alive_s: float) -> Report:
        """The report of the worker; ``alive_s``: the time for which its heartbeat counts."""
        return Report(
            since=self._since,
            alive_s=alive_s,
            topics=self._topics,
            concurrency=self._concurrency,
            running=self._running(),
            handled=self._handled,
            failed=self._failed,
            retried=self._retried,
            snoozed=self._snoozed,
            error=self._last_error,
            pickup=by_topic(self._pickup.snapshot()),
        )
