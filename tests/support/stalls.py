"""Measures for how long this process stood still, so that no bound of time fails for a slow machine."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

_TICK_S = 0.005


class Stopwatch:
    """Seconds that passed in its block without those in which nothing of this process ran.

    >>> with Stopwatch() as watch:
    ...     engine.stop()
    >>> watch.took < 0.5
    True
    """

    def __init__(self) -> None:
        self.took = 0.0
        self._still = 0.0
        self._seen = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stopwatch", daemon=True)

    def __enter__(self) -> Self:
        self._began = self._seen = time.monotonic()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ended = time.monotonic()
        self._ended.set()
        self._thread.join()
        self.took = ended - self._began - self._still

    def _watch(self) -> None:
        """Runs in a thread that only sleeps: the process stood still for as long as its wake-ups are late."""
        while not self._ended.wait(_TICK_S):
            self._look()
        self._look()

    def _look(self) -> None:
        now = time.monotonic()
        self._still += max(0.0, now - self._seen - 2 * _TICK_S)
        self._seen = now
