"""How many deliveries a worker holds. Pure.

Enough that no hand waits for the next trip; so few that nothing waits here that an idle worker elsewhere could do.
"""

from __future__ import annotations

from dataclasses import dataclass

AHEAD_S = 0.05
"""Work to hold, by the rate of the last moments: the time of many trips, and gone before anybody misses it."""

MOST_AHEAD = 1000
"""One script's worth."""

SLOW_S = 0.01
"""A handler that takes longer needs nothing held for it: a trip is a small part of that."""

STALE_S = 0.5
"""What was held unbegun for so long was a wrong guess, and is given back."""


@dataclass(slots=True)
class Prefetch:
    """Learns from what is finished."""

    concurrency: int
    mean_s: float = 0.0
    """How long a handler takes."""
    _rate: float = 0.0
    _since: float = 0.0
    _finished: int = 0
    _busy_s: float = 0.0

    def finished(self, count: int, busy_s: float, now: float) -> None:
        """So many handlers ended, after so many seconds of work in all."""
        self._finished += count
        self._busy_s += busy_s
        span = now - self._since
        if span < AHEAD_S / 5:
            return
        rate, mean_s = self._finished / span, self._busy_s / self._finished
        # after a lull what was learnt before it is old
        weight = 0.5 if span < 1.0 else 1.0
        self._rate += (rate - self._rate) * weight
        self.mean_s += (mean_s - self.mean_s) * weight
        self._since, self._finished, self._busy_s = now, 0, 0.0

    def guessed_wrong(self) -> None:
        """What was held went stale: holds nothing ahead until more has been learnt."""
        self._rate = 0.0

    def want(self, held: int, running: int) -> int:
        """How many more to claim now; none while half of what should be held is."""
        ahead = 0 if self.mean_s > SLOW_S else min(MOST_AHEAD, int(self._rate * AHEAD_S))
        target = self.concurrency - running + ahead
        return target - held if held <= target // 2 and target > held else 0
