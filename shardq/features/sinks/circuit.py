"""The circuit of one sink: whether it may be asked, and when. No I/O."""

from __future__ import annotations

import random
import time

from shardq.core.fleet.report import CircuitState

FIRST_S = 0.25
LONGEST_S = 10.0
"""The longest pause of a sink that is down. One try of a few tasks in ten seconds costs nobody much, and it is the most
that tasks wait after the sink has come back.
"""


class Circuit:
    """Closed while the sink works. Opened by a failure for a pause, which doubles with each failure in a row, with
    jitter; then half-open: one try decides.
    """

    def __init__(self) -> None:
        self.error = ""
        self._failures = 0
        self._until = 0.0

    @property
    def state(self) -> CircuitState:
        if not self._failures:
            return "closed"
        return "open" if self.pause_s() else "half-open"

    def pause_s(self) -> float:
        """The time until the sink may be asked."""
        return max(0.0, self._until - time.monotonic()) if self._failures else 0.0

    def failed(self, error: str, again_s: float = 0.0) -> None:
        """Opens it, at least for so long as the sink asks for, up to an hour."""
        self.error = error
        pause = min(LONGEST_S, FIRST_S * 2.0 ** min(self._failures, 20)) * random.uniform(0.5, 1.0)
        self._failures += 1
        self._until = time.monotonic() + max(pause, min(again_s, 3600.0))

    def worked(self) -> None:
        self.error, self._failures = "", 0
