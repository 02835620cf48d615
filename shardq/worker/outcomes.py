"""Counts by topic how tasks ended in the workers of an engine, for its metrics: from the settlements that one thread of
each worker sends, off the handlers' way. Nothing is counted before somebody asks for metrics.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from shardq.worker.job import Job, Outcome, Settlement, outcome_of

DOUBLINGS = 18
"""Durations are counted up to 1 ms, 2 ms, 4 ms and so on, up to 131 s, and those above."""


@dataclass(slots=True)
class Durations:
    """A histogram of durations. The bin ``n`` counts those below ``2**n`` ms that are in no bin before."""

    counts: list[int] = field(default_factory=lambda: [0] * (DOUBLINGS + 1))
    total_s: float = 0.0


@dataclass(slots=True)
class TopicOutcomes:
    """The tasks of one topic."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    handler: Durations = field(default_factory=Durations)
    """The time in the handler."""
    pickup: Durations = field(default_factory=Durations)
    """The time from the answer to the claim to the handler's start."""


class Outcomes:
    """The outcomes in the workers of one engine in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._topics: dict[str, TopicOutcomes] = {}

    def note(self, settlements: Iterable[tuple[Job, Settlement]]) -> None:
        """Counts jobs that are finished. Those given back undone are not counted."""
        with self._lock:
            for job, settlement in settlements:
                outcome = outcome_of(settlement)
                if outcome is None:
                    continue
                topic = job.delivery.topic
                seen = self._topics.get(topic)
                if seen is None:
                    seen = self._topics[topic] = TopicOutcomes()
                seen.outcomes[outcome] += 1
                if job.began_at:
                    _note(seen.handler, job.ended_at - job.began_at)
                    _note(seen.pickup, job.waited_s)

    def snapshot(self) -> dict[str, TopicOutcomes]:
        """The outcomes by topic so far."""
        with self._lock:
            return copy.deepcopy(self._topics)


def _note(durations: Durations, seconds: float) -> None:
    durations.counts[min(int(seconds * 1000).bit_length(), DOUBLINGS)] += 1
    durations.total_s += seconds
