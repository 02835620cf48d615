"""Decides how many deliveries a worker holds. No I/O.

Enough that no thread waits for the next trip; so few that none waits here that an idle worker elsewhere could take.
"""

from __future__ import annotations

from dataclasses import dataclass

AHEAD_S = 0.05
"""The work to hold, by the rate of the last moments: the time of many trips, and gone before anybody misses it."""

MOST_AHEAD = 1000
"""The most that one script gives."""

SLOW_S = 0.01
"""A handler that takes longer needs nothing held for it: a trip is a small part of that."""

STALE_S = 0.5
"""Jobs held unbegun for so long were a wrong guess, and are given back."""


@dataclass(slots=True)
class Prefetch:
    """Learns from finished jobs."""

    concurrency: int
    mean_s: float = 0.0
    """The mean time of a handler."""
    _rate: float = 0.0
    _since: float = 0.0
    _finished: int = 0
    _busy_s: float = 0.0

    def finished(self, count: int, busy_s: float, now: float) -> None:
        """Notes handlers that ended, and their seconds of work in all."""
        self._finished += count
        self._busy_s += busy_s
        span = now - self._since
        if span < AHEAD_S / 5:
            return
        rate, mean_s = self._finished / span, self._busy_s / self._finished
        # After a lull, what was learnt before it is old.
        weight = 0.5 if span < 1.0 else 1.0
        self._rate += (rate - self._rate) * weight
        self.mean_s += (mean_s - self.mean_s) * weight
        self._since, self._finished, self._busy_s = now, 0, 0.0

    def guessed_wrong(self) -> None:
        """Held jobs went stale: holds nothing ahead until more has been learnt."""
        self._rate = 0.0

    def want(self, held: int, running: int) -> int:
        """Returns how many more to claim now; none while half of the target is held."""
        ahead = 0 if self.mean_s > SLOW_S else min(MOST_AHEAD, int(self._rate * AHEAD_S))
        target = self.concurrency - running + ahead
        return target - held if held <= target // 2 and target > held else 0
