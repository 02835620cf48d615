"""How much a loop claims ahead of its handlers. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shardq.core.consumer.prefetch import AHEAD_S

MOST_AHEAD = 1000
"""The most that a worker holds: what one script gives."""

SLOW_S = 0.01
"""A worker whose handlers take longer holds nothing ahead: a trip is a small part of that."""


@dataclass(slots=True)
class Prefetch:
    """Decides how many deliveries a worker holds: enough that no thread waits for the next trip; so few that none waits
    here that an idle worker elsewhere could take. Learns from finished jobs. Of a key no more are held than may be out.
    """

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


@dataclass(slots=True)
class BatchRoom:
    """The room of one handler of batches: one batch for each of its places, and one ahead while its calls are quick."""

    places: int
    is_slow: bool = False
    """True if its last call took long, where that counts."""
    mean_s: float = 1.0
    """The mean time of its calls."""
    held: int = 0
    """Batches that wait for a place."""
    running: int = 0
    tasks: int = 0
    """The tasks of both that have no settlement yet."""
    waits_for_place: bool = False
    """True after a batch went stale: nothing is claimed until a place of the loop is free."""
    freed: Callable[[], object] = lambda: None
    """Called when there may be more room. Quick, and without a lock that is held while this is looked at."""

    def ended(self, seconds: float) -> None:
        """Notes the time of a call."""
        self.mean_s += (seconds - self.mean_s) / 2

    def has_room(self, free: int) -> bool:
        """True if a batch is to be claimed. ``free``: the places of the loop that nobody has."""
        if self.held + self.running < self.places:
            # With all of them taken one waits in line, or a busy neighbour would keep it out for ever.
            return free > self.held or not (self.held or self.waits_for_place)
        return not self.held and self.mean_s < AHEAD_S
