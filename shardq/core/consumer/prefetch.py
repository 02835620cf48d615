"""Claims ahead: when the next claim is begun while a program works on the last one, how large it is, and what a
consumer holds until it is asked for. The I/O is the consumers' own.

What is claimed ahead is bounded by the time for which the program works on what it has, so that it is handed out after
a small part of its lease, and idle consumers elsewhere miss nothing; what waits longer is given back. A consumer with
``prefetch=True`` learns that time from its claims (``Pace``). Workers have ``delivery/prefetch``.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shardq.core.consumer.claim_state import ClaimNotes
from shardq.core.consumer.settling import SettlementsByShard, back_unbegun
from shardq.core.locks import Guard
from shardq.core.model.task import Delivery
from shardq.core.threads import Loop
from shardq.errors import ShardqError

log: logging.Logger = logging.getLogger("shardq.consumer")

W = TypeVar("W")

AHEAD_S = 0.05
"""A program that works on its deliveries for longer has nothing claimed ahead: a trip is a small part of that. Also the
work to hold for one that asks for few at a time.
"""

MOST_HELD = 100
"""The most deliveries held for a program that asks for few at a time; one that asks for more has as many held."""

STALE_S = 0.5
"""Deliveries held for so long were a wrong guess, and are given back."""

END_S = 1.0
"""Time to give back what is held as the engine closes."""

LEASE_SHARE = 8
"""No guess is trusted, and nothing held, for longer than one part in so many of the lease."""


class Pace:
    """The time for which the program works on one delivery. Learns from the times of its claims."""

    def __init__(self, lease_s: float) -> None:
        self._ahead_s = min(AHEAD_S, lease_s / LEASE_SHARE)
        self._handed: tuple[int, float] | None = None
        """The number of deliveries that the program has now, and since when."""
        self._mean_s: float | None = None

    def back(self, now_s: float) -> None:
        """Notes that the program has come back for more."""
        if self._handed is None:
            return
        count, since = self._handed
        mean_s = (now_s - since) / count
        # a slower pace counts at once: what is held would wait for it
        self._mean_s = mean_s if self._mean_s is None or mean_s > self._mean_s else (mean_s + self._mean_s) / 2
        self._handed = None

    def handed(self, count: int, now_s: float) -> None:
        """Notes that the program has got deliveries."""
        self._handed = (count, now_s) if count else None

    def size(self, max: int) -> int:
        """Returns the size of the next claim for a program that asks for ``max``. 0: none ahead."""
        mean_s = self._mean_s
        if mean_s is None or mean_s * max > self._ahead_s:
            return 0
        most = MOST_HELD if mean_s * MOST_HELD <= self._ahead_s else int(self._ahead_s / mean_s)
        return most if most > max else max


@dataclass(slots=True, eq=False)
class BegunClaim(Generic[W]):
    """A claim under way that was not asked for yet. ``work``: as the consumer begins it."""

    work: W
    notes: ClaimNotes
    since: float


Begin = Callable[[int], BegunClaim[W] | None]
"""Begins a claim of so many, if that can be done now."""


class Ahead(Generic[W]):
    """The tasks that one consumer has claimed ahead: a claim under way, and the rest of an earlier one. Thread-safe."""

    def __init__(self, lease_s: float, release: Callable[[float], object] = lambda _: None) -> None:
        self.release = release
        """Gives back what is stale at a time. The consumer's."""
        self.lock: Guard = Guard()
        """Held while anything is begun, or given back: no claim for this consumer is made meanwhile."""
        self.pace: Pace = Pace(lease_s)
        self.wanted = 1
        """The number of deliveries that the program has asked for last."""
        self._stale_s = min(STALE_S, lease_s / LEASE_SHARE)
        self._closed = False
        self._begun: BegunClaim[W] | None = None
        self._rest: deque[Delivery] = deque()
        self._rest_since = 0.0
        self._plenty = False
        """True if the last claim had all it wanted."""

    @property
    def any(self) -> bool:
        return self._begun is not None or bool(self._rest)

    def filled(self, size: int, begin: Begin[W]) -> bool:
        """Notes that a claim of so many has all it wanted. Begins the next one, and returns True, if the program takes
        all of it.
        """
        self._plenty = True
        return size <= self.wanted and self.begin(begin)

    def begin(self, begin: Begin[W]) -> bool:
        """Begins the next claim if the pace allows it, and half of the last one is taken. Returns True if it did."""
        size = self.pace.size(self.wanted)
        if not self._plenty or not size or self._begun is not None or len(self._rest) > size // 2:
            return False
        with self.lock:
            if not self._closed:
                self._begun = begin(size)
            return self._begun is not None

    def take_begun(self, now_s: float) -> BegunClaim[W] | None:
        """Takes the claim under way, to finish it; not a stale one, which is given back."""
        with self.lock:
            begun = self._begun
            if begun is None or self.stale(now_s):
                return None
            self._begun, self._plenty = None, False
            return begun

    def take(self, max: int, now_s: float) -> list[Delivery]:
        """Takes up to ``max`` of the rest; nothing that is stale, which is given back."""
        with self.lock:
            if self.stale(now_s):
                return []
            return [self._rest.popleft() for _ in range(min(max, len(self._rest)))]

    def hold(self, deliveries: Iterable[Delivery], since: float) -> None:
        """Holds what a claim gave, until it is taken."""
        with self.lock:
            self._rest.extend(deliveries)
            self._rest_since = since

    def stale(self, now_s: float) -> bool:
        """True if what is held is to be given back: it is held for too long, or nobody will ask for it."""
        if self._closed:
            return self.any
        limit = now_s - self._stale_s
        begun = self._begun
        return (begun is not None and begun.since <= limit) or (bool(self._rest) and self._rest_since <= limit)

    def empty(self) -> tuple[BegunClaim[W] | None, SettlementsByShard]:
        """Takes everything, to be given back. The lock is held."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.notes.caller_left = True
        rest = back_unbegun(self._rest)
        self._rest.clear()
        self._plenty = False
        return begun, rest

    def close(self) -> None:
        """Begins no more, and hands out no more. Needs no lock: the handler of a signal may call it."""
        self._closed = True


class AheadWatch:
    """Gives back the deliveries that consumers on threads of one engine hold for too long. Its thread begins with
    the first claim ahead, and sleeps while nothing is held.
    """

    def __init__(self) -> None:
        self._held = set[Ahead[Any]]()
        self._loop = Loop(
            "shardq-ahead",
            self._step,
            log,
            fails="what was claimed ahead can't be given back, trying again",
            works="what was claimed ahead is given back again",
            ended=lambda: self._look(math.inf),
        )

    def note(self, ahead: Ahead[Any]) -> None:
        """Watches what holds something from now on."""
        if ahead in self._held:
            return
        try:
            self._held.add(ahead)
            self._loop.start()
            self._loop.wake()
        except BaseException:  # else no later note of it would wake the thread
            self._held.discard(ahead)
            raise

    def close(self) -> None:
        """Gives everything back; what a dead server is not told of in time comes back when its lease runs out."""
        self._loop.stop()
        self._loop.join(END_S)

    def _step(self) -> float | None:
        self._look(time.monotonic())
        return STALE_S / 2 if self._held else None

    def _look(self, now_s: float) -> None:
        """Makes consumers that hold deliveries give stale ones back, and forgets the others."""
        for ahead in list(self._held):
            # Before the look: what it claims after that is noted anew.
            self._held.discard(ahead)
            try:
                ahead.release(now_s)
            except ShardqError as exc:
                log.debug("what was claimed ahead could not be given back: %s", exc)
            if ahead.any:
                self._held.add(ahead)
