"""Ends a command in good order on SIGINT, SIGTERM and SIGHUP.

Called by the commands that run until they are told to end (``run``, ``work``, ``demo``), and by ``push``, which must
not end in the middle of a call.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, TypeVar

from shardq.worker.supervisor import LOOK_S, SignalSafeEvent, ending_signals

T = TypeVar("T")

SIGNALLED = 128
"""The exit code of a command that a signal ended is this and the signal's number."""


def apart(work: Callable[[], T]) -> T:
    """Runs ``work`` in a thread of its own and returns its result.

    The main thread is free for signals meanwhile, and the exception of a signal's handler does not interrupt the work.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as exc:  # noqa: BLE001  raised again in the main thread
            failure.append(exc)

    thread = threading.Thread(target=run, name="shardq-apart", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
    if failure:
        raise failure[0]
    return result[0]


class Ending:
    """The wish of the user that a command ends. For a ``with`` block in the main thread.

    The first signal sets ``asked``. The second one raises KeyboardInterrupt, unless ``finish`` was called before. Later
    ones change nothing, because the command cleans up by then.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._ears: tuple[int, int] | None = None
        """A pipe that the handler writes to, not a threading.Event: the handler may interrupt ``wait`` while that holds
        the event's lock, and would wait for it for ever.
        """
        self._finishing = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._ears = os.pipe()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._heard) for number in numbers}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)
        for end in self._ears or ():
            os.close(end)
        self._ears = None

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @property
    def code(self) -> int:
        """The exit code of a command that the signal ended."""
        return SIGNALLED + (self.signal or 0)

    def fileno(self) -> int:
        """A descriptor that is readable from the first signal on: for a ``select`` that waits for other things, too."""
        assert self._ears is not None, "within its with block"
        return self._ears[0]

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the first signal. Returns True if it came."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            select.select([self], [], [], min(left, LOOK_S))
        return self.asked

    def finish(self) -> None:
        """Ignores signals from now on: the command cleans up, and must not stop halfway."""
        self._finishing = True

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self._finishing:
            return
        if self.asked:
            self._finishing = True
            raise KeyboardInterrupt
        self.signal = number
        if self._ears is not None:
            os.write(self._ears[1], b"\0")


class Shutdown:
    """The end of a command that finishes what runs, or has processes. For a ``with`` block in the main thread.

    The first signal sets ``stop``, a second one ``hurry``.
    """

    def __init__(self) -> None:
        self.stop = SignalSafeEvent()
        self.hurry = SignalSafeEvent()
        self.heard = ending_signals()
        """The signals that it hears."""
        self.code = 0
        """The exit code: 0 after the first signal, that of the second one after it."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._heard) for number in self.heard}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _heard(self, number: int, _: FrameType | None) -> None:
        if not self.stop.set():
            self.hurry.set()
            self.code = SIGNALLED + number
