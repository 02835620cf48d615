"""An event that signal handlers may set, too, and the signals that end a worker.

Not a ``threading.Event``: a signal handler interrupts the main thread anywhere, also while that holds the event's own
lock. ``SimpleQueue.put`` may be called even then.
"""

from __future__ import annotations

import contextlib
import math
import queue
import signal
import threading
import time

LOOK_S = 0.2
"""The length of one wait. When two signals come at once, the system may have another thread take both, and does not
wake the main thread, where Python would call their handlers."""


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a worker. SIGHUP, which a closed terminal sends, is not among them when it is ignored, as
    under nohup, or when the program has a handler for it.
    """
    always = (signal.SIGTERM, signal.SIGINT)
    return (*always, signal.SIGHUP) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else always


class SignalSafeEvent:
    """An event. Anybody may set it; ``wait`` is for one thread, the one that clears it."""

    def __init__(self) -> None:
        self._given = threading.Lock()
        """Held once the event is set; nobody waits for it."""
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> bool:
        """Sets the event. Returns True to the first caller alone: a second signal may interrupt the handler of the
        first.
        """
        first = self._given.acquire(blocking=False)
        self._calls.put(None)
        return first

    def is_set(self) -> bool:
        return self._given.locked()

    def clear(self) -> None:
        if self._given.locked():
            self._given.release()
        with contextlib.suppress(queue.Empty):
            while True:
                self._calls.get_nowait()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, or for so many seconds. Returns True if it is set."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_set() and (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._calls.get(timeout=min(left, LOOK_S))
        return self.is_set()
