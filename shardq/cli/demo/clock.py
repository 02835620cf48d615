"""A server's clock, judged from here. Used by the demo, to know independently of the engine whether a task is early."""

from __future__ import annotations

import math
import time
from typing import Any

from shardq.calls.request import Command
from shardq.drivers.sync import Driver

SAMPLES = 5
"""The quickest of a few trips bounds the clock best; on one machine that is to some ten microseconds."""


class Clock:
    """The clock of the master that serves a slot."""

    def __init__(self, driver: Driver, slot: int) -> None:
        self._driver = driver
        self._slot = slot
        self._lead_s = 0.0
        self.look()

    def look(self) -> None:
        """Compares it with ours: at first, and when it may have been set since."""
        # the server read its clock after we sent the question: its lead over ours is this or less
        lead_s = math.inf
        for _ in range(SAMPLES):
            sent = time.monotonic()
            lead_s = min(lead_s, self._driver.call(Command(self._slot, ("TIME",), _seconds)) - sent)
        self._lead_s = lead_s

    def latest_ms(self, now_s: float) -> float:
        """The server's clock at an instant of ``time.monotonic()``, or a little more; never less."""
        return (now_s + self._lead_s) * 1000


def _seconds(answer: list[Any]) -> float:
    seconds, micros = answer
    return int(seconds) + int(micros) / 1e6
