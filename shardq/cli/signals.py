"""Ending on SIGINT, SIGTERM and SIGHUP in good order. Used by the commands that run until they are told to stop, and by
those that must not stop in the middle of what they are doing.
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

from shardq.worker.signal_event import LOOK_S

T = TypeVar("T")

SIGNALLED = 128
"""An exit code above this says which signal ended a command."""


def apart(work: Callable[[], T]) -> T:
    """The result of ``work``, done in a thread: the main one hears signals at once.

    What a signal raises then does not strike in the middle of the work, either.
    """
    result: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work())
        except BaseException as exc:  # noqa: BLE001  raised again where it is waited for
            failure.append(exc)

    thread = threading.Thread(target=run, name="shardq-apart", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]


class Ending:
    """Set by the first signal; the second one raises KeyboardInterrupt, unless all is being put in order by then. Those
    after it change nothing: what it set off cleans up, too. For a ``with`` in the main thread.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._ears: tuple[int, int] | None = None
        """A pipe that the handler writes to. It may interrupt our own ``wait`` at any point: a threading.Event would
        stand still if that held its lock then.
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
        """The exit code of a command that was ended so."""
        return SIGNALLED + (self.signal or 0)

    def fileno(self) -> int:
        """Readable from the first signal on: to be waited for beside other things."""
        assert self._ears is not None, "within its with block"
        return self._ears[0]

    def wait(self, seconds: float | None = None) -> bool:
        """Returns as soon as it is asked for; says whether it is."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            select.select([self], [], [], min(left, LOOK_S))
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
        if self._ears is not None:
            os.write(self._ears[1], b"\0")
