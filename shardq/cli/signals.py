"""Ending on SIGINT and SIGTERM in good order. Used by the commands that run until they are told to stop."""

from __future__ import annotations

import queue
import signal
from contextlib import suppress
from types import FrameType
from typing import Any, Self


class Ending:
    """Set by the first SIGINT or SIGTERM; the second one raises KeyboardInterrupt, unless all is being put in order by
    then. Those after it change nothing: what it set off cleans up, too. For a ``with`` in the main thread.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._heard_one: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Put into from a signal handler, which may interrupt our own ``wait`` at any point: a threading.Event would
        stand still if that held its lock then.
        """
        self._finishing = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._heard) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    @property
    def asked(self) -> bool:
        return self.signal is not None

    def wait(self, seconds: float | None = None) -> bool:
        """Returns as soon as it is asked for; says whether it is."""
        if not self.asked:
            with suppress(queue.Empty):
                self._heard_one.get(timeout=seconds)
        return self.asked

    def finish(self) -> None:
        """From now on signals change nothing: who cleans up is not to be stopped halfway."""
        self._finishing = True

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self._finishing:
            return
        if self.asked:
            self._finishing = True
            raise KeyboardInterrupt
        self.signal = number
        self._heard_one.put(None)
