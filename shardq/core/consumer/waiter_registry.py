"""The consumers that wait in this process, and the ready lists in which the process is registered. State under a lock,
no I/O: ``wakeups`` does that.

Servers register waiting processes, not consumers, in ``waiting/TOPIC`` of each empty list. The first task that arrives
there draws one process and wakes it. As long as a process is registered in a list, that list has nothing new for it; so
a waiting consumer asks only the lists in which its process is not registered.

One message wakes one waiter. A message that no waiter takes is kept as *untaken*, for the next consumer that waits
here; ``wakeups`` wakes another process when none comes soon.
"""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardq.core.locks import Guard, Living
from shardq.errors import EngineClosed

RECHECK_S = 10.0
"""A lone waiting process asks all lists again this often, although nothing woke it. Many processes share the work: each
asks the less often, the more there are.
"""

LONGEST_RECHECK_S = 40.0
"""With all that chance adds, a minute at most: names of processes that are gone count, too, until they are drawn."""

FULL_RECHECK_EVERY = 30
"""One in so many rechecks registers again, every half an hour at the latest: servers drop registrations older than an
hour as dead. The others ask only if the lists of a shard are empty, one command for each shard; lists that are not are
then claimed from as usual.
"""

Recheck = Literal["whole", "lengths"]

STAGGER = 0.2
"""The waiters of a process spread their rechecks over this part of the period: the first asks all shards, and the
others find it done.
"""

ReadyList = tuple[int, str]
"""A ready list: shard and topic. With PERMITS in place of the shard: the permits of a limited topic, which wake one
waiter in the same way.
"""

PERMITS = -1


@dataclass(eq=False, slots=True, weakref_slot=True)
class Waiter:
    """A consumer inside ``claim(wait=…)``."""

    topics: Collection[str]
    wake: Callable[[], object]
    """Ends the waiter's sleep. May be called from any thread."""
    denied: Collection[str] = ()
    """Limited topics that had no permit left when it went to sleep: only a permit that goes back is news of these."""
    woken_for: set[ReadyList] = field(default_factory=set)
    """The lists that it was woken for and has not claimed from yet."""
    asked: set[ReadyList] = field(default_factory=set)
    """The lists that it was woken for and has claimed from, or is claiming from. Such a claim may have taken all it
    wants from other lists.
    """


class WaiterRegistry:
    """The waiters of one engine. Thread-safe."""

    def __init__(self) -> None:
        self.lock: Guard = Guard()
        """Held while anything here changes."""
        self._registered: defaultdict[int, set[str]] = defaultdict(set)
        """Shard → the topics in whose lists the process is registered."""
        self._names: set[ReadyList] = set()
        """The lists in which servers may have the name of this process."""
        self._wakeups: dict[ReadyList, int] = {}
        """The number of wake-ups from each list. It tells when the process was drawn while the claim that registered it
        was still on its way.
        """
        self._waiters = Living[Waiter]()
        """One whose claim was interrupted may not leave."""
        self._alarms: dict[str, Waiter] = {}
        """Topic → the waiter that asks for permits again when the denial of all is over."""
        self._untaken: set[ReadyList] = set()
        self._crowd = 1
        self._rechecks = 0
        self._recheck_at: dict[str, float] = {}
        """Topic → when to ask for its lists again, although the process is registered in all of them."""
        self._closed = False

    def close(self) -> None:
        """Ends every wait here. Later consumers do not wait."""
        with self.lock:
            self._closed = True
        self.wake_all()

    def enter(self, waiter: Waiter) -> None:
        """Lets messages wake the waiter from now on. It gets what is untaken."""
        with self.lock:
            self._waiters.add(waiter)
            waiter.woken_for = {entry for entry in self._untaken if entry[1] in waiter.topics}
            self._untaken -= waiter.woken_for

    def ask(self, waiter: Waiter) -> Collection[ReadyList]:
        """Notes that the waiter claims from what it was woken for, and returns that. Raises EngineClosed once the
        registry is closed.
        """
        with self.lock:
            if self._closed:
                raise EngineClosed("the engine was closed while a claim waited: make another, or open() it again")
            woken_for, waiter.woken_for = waiter.woken_for, set()
            waiter.asked |= woken_for
            return woken_for

    def leave(self, waiter: Waiter, left: Collection[ReadyList] = ()) -> list[ReadyList]:
        """Removes a waiter, which knows that it ``left`` something in these lists. Returns the lists it was woken for
        and that no waiter here can take now: this process was drawn for them, so it must wake another.
        """
        with self.lock:
            self._waiters.discard(waiter)
            for topic in [topic for topic, holder in self._alarms.items() if holder is waiter]:
                self._pass_alarm(topic, wake=True)
            return [entry for entry in waiter.woken_for | waiter.asked.intersection(left) if not self._offer(entry)]

    def wakeup_received(self, entry: ReadyList) -> bool:
        """Notes that this process was drawn for a task in the list. Returns True if a waiter takes it."""
        with self.lock:
            self._names.discard(entry)
            self._forget(entry)
            return self._offer(entry)

    def waits_for_permits(self, topic: str) -> None:
        """Notes that this process may be registered for the permits of a topic."""
        with self.lock:
            self._names.add((PERMITS, topic))

    def sleeps_denied(self, waiter: Waiter, topics: Collection[str]) -> Collection[str]:
        """Notes that the waiter sleeps while these topics are denied. Returns those of which it has the alarm."""
        with self.lock:
            waiter.denied = topics
            for topic in [topic for topic, holder in self._alarms.items() if holder is waiter and topic not in topics]:
                del self._alarms[topic]
            return [topic for topic in topics if self._alarms.setdefault(topic, waiter) is waiter]

    def pass_alarm(self, topic: str, waiter: Waiter | None, *, wake: bool) -> None:
        """Notes that a permit was granted to a waiter. ``wake``: the next waiter that was denied asks at once."""
        with self.lock:
            self._pass_alarm(topic, wake=wake, but=waiter)

    def _pass_alarm(self, topic: str, *, wake: bool, but: Waiter | None = None) -> None:
        self._alarms.pop(topic, None)
        if not wake:
            return
        for other in self._waiters:
            if topic in other.denied and not other.woken_for and other is not but:
                self._alarms[topic] = other
                other.wake()
                return

    @property
    def is_idle(self) -> bool:
        """True if no consumer waits."""
        return not self._waiters

    def names(self, most: int) -> list[ReadyList]:
        """Returns the lists in which servers may have the name of this process, up to so many."""
        with self.lock:
            return list(itertools.islice(self._names, most))

    def permit_wakeups(self, topic: str) -> int:
        """Returns how often a permit of the topic may have gone back, as far as this process was told."""
        return self._wakeups.get((PERMITS, topic), 0)

    def others_wait(self, waiter: Waiter, topics: Collection[str]) -> bool:
        """True if another waiter wants tasks of one of these topics."""
        with self.lock:
            return any(topic in other.topics for other in self._waiters if other is not waiter for topic in topics)

    def messages_missed(self, shard: int) -> None:
        """Notes that messages of the shard may have been missed, or the shard was lost: the process may be registered
        there no longer.
        """
        with self.lock:
            for entry in [entry for entry in self._wakeups if entry[0] == shard]:
                self._forget(entry)
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()

    def take_back(self, entry: ReadyList) -> bool:
        """Takes back what is still untaken, to be given to another process. Returns True if it was."""
        with self.lock:
            if entry in self._untaken:
                self._untaken.remove(entry)
                return True
            return False

    def wake_for(self, entries: Collection[ReadyList]) -> None:
        """Wakes waiters for lists in which a consumer left more than it took."""
        if not entries:  # as with most claims, and waiters may be a thousand
            return
        with self.lock:
            # every claim that leaves something comes here: one look at the waiters is for all lists
            free = [waiter for waiter in self._waiters if not waiter.woken_for]
            nobody: set[str] = set()
            for entry in entries:
                if not free:
                    return
                if entry[1] in nobody:
                    continue
                if (waiter := self._wake_first(free, entry)) is not None:
                    free.remove(waiter)
                else:
                    nobody.add(entry[1])

    def wake_all(self) -> None:
        with self.lock:
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.wake()

    def wakeup_counts(self, shards: Sequence[int], topics: Collection[str]) -> dict[ReadyList, int]:
        """Returns the counts to give to ``registered`` later; called before a claim is sent."""
        with self.lock:
            return {(s, t): self._wakeups.setdefault((s, t), 0) for s in shards for t in topics}

    def registered(self, before: dict[ReadyList, int], empty: Iterable[ReadyList], crowd: int) -> None:
        """Notes that a claim asked the lists of ``before`` and registered the process in the empty ones."""
        with self.lock:
            kept = {entry for entry in empty if self._wakeups.get(entry) == before.get(entry)}
            for shard, topic in before:
                self._registered[shard].discard(topic)
            for shard, topic in kept:
                self._registered[shard].add(topic)
            self._names |= kept
            self._crowd = max(1, crowd)

    def unregistered(self, shards: Sequence[int], topics: Collection[str]) -> list[int]:
        """The shards with a list of these topics in which the process is not registered."""
        with self.lock:
            return [shard for shard in shards if not self._registered[shard].issuperset(topics)]

    def unregistered_topics(self, shards: Sequence[int], topics: Collection[str]) -> list[str]:
        """Returns the topics for which the process is not registered in every one of these shards."""
        with self.lock:
            return [topic for topic in topics if not all(topic in self._registered[shard] for shard in shards)]

    def forget_all(self) -> None:
        """Trusts no registration any more: the next claim asks every shard."""
        with self.lock:
            self._registered.clear()

    def sleep_s(self, topics: Collection[str], now: float) -> float:
        """The time that a waiter may sleep when the process is registered in every list of its topics."""
        with self.lock:
            at = min(
                (self._recheck_at.setdefault(t, now + self._until_recheck_s()) for t in topics), default=now + RECHECK_S
            )
        return max(0.0, at - now) + self._period_s() * random.uniform(0.0, STAGGER)

    def recheck_due(self, topics: Collection[str], now: float) -> Recheck | None:
        """Returns the kind of recheck that is due for any of these topics, to one waiter alone, which does it for all:
        it asks for all of them.
        """
        with self.lock:
            if all(self._recheck_at.get(t, now + 1) > now for t in topics):
                return None
            self._recheck_at |= dict.fromkeys(topics, now + self._until_recheck_s())
            self._rechecks += 1
            return "whole" if self._rechecks % FULL_RECHECK_EVERY == 0 else "lengths"

    def not_empty(self, entries: Iterable[ReadyList]) -> None:
        """Notes lists that were found with something in them: the process may be registered there no longer."""
        with self.lock:
            for entry in entries:
                self._forget(entry)

    def _period_s(self) -> float:
        return min(LONGEST_RECHECK_S, RECHECK_S * self._crowd)

    def _until_recheck_s(self) -> float:
        return self._period_s() * random.uniform(0.8, 1.2)

    def _forget(self, entry: ReadyList) -> None:
        self._registered[entry[0]].discard(entry[1])
        self._wakeups[entry] = self._wakeups.get(entry, 0) + 1

    def _offer(self, entry: ReadyList) -> bool:
        taken = self._wake_first(self._waiters, entry) is not None
        if not taken:
            self._untaken.add(entry)
        return taken

    @staticmethod
    def _wake_first(waiters: Iterable[Waiter], entry: ReadyList) -> Waiter | None:
        """Wakes the waiter that waits longest and was not woken yet. Returns it."""
        shard, topic = entry
        for waiter in waiters:
            if not waiter.woken_for and topic in waiter.topics and (shard == PERMITS or topic not in waiter.denied):
                waiter.woken_for.add(entry)
                waiter.wake()
                return waiter
        return None
