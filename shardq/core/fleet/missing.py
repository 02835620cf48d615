"""Looks for a dispatcher while a caller waits for what only a dispatcher does: for a task to be ready, or for a change
of the number of shards. Without one the wait has no end, and a warning says so.
"""

from __future__ import annotations

import logging
import math
import time

from shardq.core.calls import control
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.layout.keys import ControlKeys
from shardq.core.operation import Operation
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.fleet")

LOOK_S = 2.0
"""From the beginning of a wait to its first look: a program may start its own dispatcher meanwhile."""

LOOK_AGAIN_S = 60.0
"""Between two looks that find one: many consumers look."""


class DispatcherLook:
    """Looks, while a caller waits in vain, if a dispatcher lives, and says once that none does."""

    def __init__(self, said: str = NO_DISPATCHER, *, again_s: float = LOOK_AGAIN_S) -> None:
        self._said = said
        self._again_s = again_s
        self._at: float | None = None
        self._missing = 0

    def left_s(self, now: float) -> float:
        """The seconds until the next look."""
        if self._at is None:
            self._at = now + LOOK_S
        return max(0.0, self._at - now)

    def look(self, keys: ControlKeys) -> Operation[None]:
        try:
            now_ms = yield control.clock_ms(keys).briefly()
            alive = yield control.alive(keys, now_ms).briefly()
        except ShardqError:
            alive = ["it can't be told"]
        self._missing = 0 if alive else self._missing + 1
        self._at = time.monotonic() + (self._again_s if alive else LOOK_S / 2)
        if self._missing == 2:  # one that has just started may not be seen yet
            log.warning("%s", self._said)
            self._at = math.inf
