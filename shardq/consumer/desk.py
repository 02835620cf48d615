"""Who waits in this process, and which ready lists know it. Pure state under a lock; the room around it does the I/O.

To the servers the waiter is the process: a list that a waiting claim found empty keeps its name, until a task that
arrives there draws it. So as long as the name stands nothing has come that is ours to fetch, and a waiting consumer
asks only where its process is not named. A message takes one waiter; what nobody takes at once is *open*, for whoever
comes next, or to be passed on.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardq.errors import EngineClosed

SAFETY_S = 10.0
"""How often a lone process that waits looks although nobody woke it; more of them share this, so that a shard is asked
once in 10 s whatever the fleet."""

LONGEST_SAFETY_S = 1800.0
"""Names older than an hour are dropped as dead: look twice as often."""

WHOLE = 6
"""One in so many of these looks leaves the names again. The others ask for the lengths of the lists only, with a sixth
of the commands; where one is not empty the name is left again, too."""

Doubt = Literal["whole", "lengths"]

STAGGER = 0.2
"""Of the time between two looks: over this the waiters of a process spread theirs, so that one of them asks the shards
and the others find it done."""

List = tuple[int, str]
"""One ready list: shard and topic."""


@dataclass(eq=False, slots=True)
class Waiter:
    """One consumer inside ``claim(wait=…)``."""

    topics: Collection[str]
    wake: Callable[[], None]
    """Ends its sleep; from any thread."""
    lists: set[List] = field(default_factory=set)
    """What it was woken for and has not asked yet."""
    asked: set[List] = field(default_factory=set)
    """What it was woken for and has asked, or is asking: it may take from another list all it wants."""


class Desk:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: set[List] = set()
        self._turns: dict[List, int] = {}
        """How often each list has woken us: tells a name drawn while the claim that left it was still on its way."""
        self._waiters: list[Waiter] = []
        self._open: set[List] = set()
        self._crowd = 1
        self._doubts = 0
        self._doubt_at: dict[str, float] = {}
        """By topic: when names have stood for so long without a message that they are asked for again."""
        self._closed = False

    def close(self) -> None:
        """Ends every wait here, and whoever comes later does not wait."""
        with self._lock:
            self._closed = True
        self.rouse_all()

    def enter(self, waiter: Waiter) -> None:
        """From now on messages may wake it; what is open is its."""
        with self._lock:
            self._waiters.append(waiter)
            waiter.lists = {entry for entry in self._open if entry[1] in waiter.topics}
            self._open -= waiter.lists

    def ask(self, waiter: Waiter) -> None:
        """It asks for what it was woken for. Raises EngineClosed where nobody waits any more."""
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine was closed while a claim waited: make another, or open() it again")
            waiter.asked |= waiter.lists
            waiter.lists.clear()

    def leave(self, waiter: Waiter, left: Collection[List] = ()) -> list[List]:
        """It waits no longer, and knows that it ``left`` something in these lists. Answers those it was woken for and
        nobody here can take now: the name that was drawn for them was ours.
        """
        with self._lock:
            self._waiters.remove(waiter)
            return [entry for entry in waiter.lists | waiter.asked.intersection(left) if not self._give(entry)]

    def heard(self, entry: List) -> bool:
        """Our name was drawn for a task in this list. Says whether a waiter takes it; else it is open."""
        with self._lock:
            self._forget(entry)
            return self._give(entry)

    def missed(self, shard: int) -> None:
        """Messages of this shard may not have reached us, or it was lost: nobody knows whether our name stands."""
        with self._lock:
            for entry in [entry for entry in self._turns if entry[0] == shard]:
                self._forget(entry)
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()

    def unanswered(self, entry: List) -> bool:
        """Whether the list is still open after the time to take it: then it is no longer ours."""
        with self._lock:
            if entry in self._open:
                self._open.remove(entry)
                return True
            return False

    def rouse(self, entries: Iterable[List]) -> None:
        """More is left in these lists than the consumer that says so takes: another of ours may have it."""
        with self._lock:
            for entry in entries:
                self._take(entry)

    def rouse_all(self) -> None:
        with self._lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()

    def turns(self, shards: Sequence[int], topics: Collection[str]) -> dict[List, int]:
        """To be taken before a claim is sent, and given to ``named`` with its answer."""
        with self._lock:
            return {(s, t): self._turns.setdefault((s, t), 0) for s in shards for t in topics}

    def named(self, before: dict[List, int], empty: Iterable[List], crowd: int) -> None:
        """A claim asked the lists of ``before`` and left our name in the empty ones; of the others nothing is known."""
        with self._lock:
            self._named.difference_update(before)
            self._named |= {entry for entry in empty if self._turns.get(entry) == before.get(entry)}
            self._crowd = max(1, crowd)

    def unnamed(self, shards: Sequence[int], topics: Collection[str]) -> list[int]:
        """The shards where some list of these topics does not know us."""
        with self._lock:
            return [s for s in shards if any((s, t) not in self._named for t in topics)]

    def forget_all(self) -> None:
        """Trust no name any more: the next look asks everywhere."""
        with self._lock:
            self._named.clear()

    def trusted_s(self, topics: Collection[str], now: float) -> float:
        """How long a waiter may sleep when every list of its topics knows us."""
        with self._lock:
            at = min((self._doubt_at.setdefault(t, now + self._safety_s()) for t in topics), default=now + SAFETY_S)
        return max(0.0, at - now) + self._period_s() * random.uniform(0.0, STAGGER)

    def doubt(self, topics: Collection[str], now: float) -> Doubt | None:
        """Whether it is time to ask all lists of these topics, known or not, and for what. Of all waiters one is told,
        who asks for all."""
        with self._lock:
            old = {t for t in topics if self._doubt_at.get(t, now + 1) <= now}
            if not old:
                return None
            self._doubt_at |= dict.fromkeys(old, now + self._safety_s())
            self._doubts += 1
            rare = self._period_s() * WHOLE > LONGEST_SAFETY_S
            return "whole" if rare or self._doubts % WHOLE == 0 else "lengths"

    def not_empty(self, entries: Iterable[List]) -> None:
        """These lists were asked for their lengths: our name may stand there no more."""
        with self._lock:
            for entry in entries:
                self._forget(entry)

    def _period_s(self) -> float:
        return min(LONGEST_SAFETY_S, SAFETY_S * self._crowd)

    def _safety_s(self) -> float:
        return self._period_s() * random.uniform(0.8, 1.2)

    def _forget(self, entry: List) -> None:
        self._named.discard(entry)
        self._turns[entry] = self._turns.get(entry, 0) + 1

    def _give(self, entry: List) -> bool:
        taken = self._take(entry)
        if not taken:
            self._open.add(entry)
        return taken

    def _take(self, entry: List) -> bool:
        # the one that has waited longest and was not woken yet
        for waiter in self._waiters:
            if not waiter.lists and entry[1] in waiter.topics:
                waiter.lists.add(entry)
                waiter.wake()
                return True
        return False
