"""Begins work in threads, and waits for threads that were told to end: by whatever runs threads, when it is stopped.

A thread in the handshake with a silent server can't be told anything before its timeout, and must not hold up the end
of a program. It is left behind, does nothing more, and ends by itself some seconds later.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

END_S = 0.15
"""The time that all threads have together: stopping in half a second is the promise, and signing off takes its part."""


def begun(work: Callable[[], T], name: str, *, daemon: bool = True) -> Future[T]:
    """Begins work in a thread of its own, which does it to its end: nobody who waits for the outcome can cancel it.

    ``daemon``: a program that ends does not wait for it.
    """
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as exc:  # noqa: BLE001  whoever waits learns of it
            outcome.set_exception(exc)

    try:
        threading.Thread(target=run, name=name, daemon=daemon).start()
    except RuntimeError:  # the interpreter is shutting down, or the system has no more threads
        run()
    return outcome


def ended(threads: Iterable[threading.Thread]) -> None:
    """Returns when all have ended, or after ``END_S``. The calling thread is passed over."""
    deadline = time.monotonic() + END_S
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))
