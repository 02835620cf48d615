"""Ending on SIGINT and SIGTERM in good order. Used by the commands that run until they are told to stop."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Ending:
    """Set by the first SIGINT or SIGTERM; a second one raises KeyboardInterrupt, unless all is being put in order by
    then. For a ``with`` in the main thread.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._event = threading.Event()
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
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Returns as soon as it is asked for; says whether it is."""
        return self._event.wait(seconds)

    def finish(self) -> None:
        """From now on signals change nothing: who cleans up is not to be stopped halfway."""
        self._finishing = True

    def _heard(self, number: int, _: FrameType | None) -> None:
        if self._finishing:
            return
        if self._event.is_set():
            raise KeyboardInterrupt
        self.signal = number
        self._event.set()
