"""Waits for threads that were told to end. Called by whatever runs threads, when it is stopped.

A thread in the handshake with a silent server can't be told anything before its timeout, and must not hold up the end
of a program. It is left behind, does nothing more, and ends by itself some seconds later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

END_S = 0.15
"""For all threads together: stopping in half a second is the promise, and signing off takes its part of that."""


def ended(threads: Iterable[threading.Thread]) -> None:
    """Returns when all have ended, or after ``END_S``. The calling thread is passed over."""
    deadline = time.monotonic() + END_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
