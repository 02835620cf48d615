"""Strays: handlers that run on although their task was ended over their heads, after a timeout, or when its lease was
lost. Nothing can end a thread, nor a coroutine that swallows its cancellation. Others get its place at once, so there
may be many strays. A topic with ``MOST`` of them, or with one for each place, is claimed no more until some end.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Mapping

from shardq.delivery.job import Unit
from shardq.delivery.logs import Once, tell

MOST = 16
"""The strays that any topic may have. A thread costs some megabytes at worst, and with one place a single stray must
not end the work.
"""


class Strays:
    """The strays of one worker. Thread-safe."""

    def __init__(self, concurrency: int) -> None:
        self._most = max(MOST, concurrency)
        self._lock = threading.Lock()
        self._once = Once()
        self.units: set[Unit] = set()
        """Not to be changed by others."""

    def __str__(self) -> str:
        return ", ".join(f"{name}: {count}" for name, count in self.names.items())

    def add(self, unit: Unit) -> None:
        with self._lock:
            self.units.add(unit)

    def discard(self, unit: Unit) -> None:
        """Removes a stray that has ended."""
        with self._lock:
            self.units.discard(unit)

    def say(self, unit: Unit) -> None:
        if self._once.new(name := unit.name):
            what = "handler %s runs on after its task was ended; others have its place, it is counted (said once)"
            tell(logging.WARNING, what, name)

    @property
    def functions(self) -> int:
        """The number of strays that keep a thread."""
        with self._lock:
            return sum(not unit.is_coroutine for unit in self.units)

    @property
    def names(self) -> Mapping[str, int]:
        """Handler's name → its strays."""
        with self._lock:
            return dict(Counter(unit.name for unit in self.units))

    @property
    def full(self) -> frozenset[str]:
        """The topics that have too many strays."""
        if len(self.units) < self._most:
            return frozenset()
        with self._lock:
            counts = Counter(unit.first.topic for unit in self.units)
        return frozenset(topic for topic, count in counts.items() if count >= self._most)
