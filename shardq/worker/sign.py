"""A sign to stop, given by signal handlers too.

Not a ``threading.Event``: a handler interrupts the main thread anywhere, also while that holds the event's own lock.
``SimpleQueue.put`` may be called even then.
"""

from __future__ import annotations

import contextlib
import queue


class Sign:
    """Given by anybody; ``wait`` is for one thread, the one that clears it."""

    def __init__(self) -> None:
        self._given = False
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._given = True
        self._calls.put(None)

    def is_set(self) -> bool:
        return self._given

    def clear(self) -> None:
        self._given = False
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is given, or for so many seconds. Says whether it is."""
        if not self._given:
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=timeout)
        return self._given
