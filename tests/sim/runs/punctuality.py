"""Nothing waits for a look-round: while nothing is wrong, what is due is dispatched at once, and whoever waits for it
in a claim gets it at once. While one dispatcher is cut off from a node, another one dispatches what is due there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Sized
from typing import Any, TypeVar

from tests.judge.history import Book
from tests.judge.workload import TOPICS
from tests.sim.invariants import FAR, Shard, Violation
from tests.sim.world.hub import START_US, Process

T = TypeVar("T")

LATE_MS = 60
"""More than it takes to hand a shard over to another process, and far less than any look-round."""

CUT_OFF_MS = 10_000
"""More than it takes until another dispatcher serves what one can't reach: two calls that time out, a heartbeat, and
another if the first deputy is the one that is cut off.
"""

STARTED_MS = 2000
"""By then all dispatchers of a run listen."""

PLACES = 4
"""Handlers that a worker runs at a time."""

RECHECKED_MS = 60_000
"""By then all processes that wait have asked again by themselves: ``waiters.LONGEST_RECHECK_S``, and chance."""

CONNECTS_MS = 10_000
"""After a fault, until all processes have connected again."""


class Present:
    """What is there, by key of a shard, and since when."""

    def __init__(self) -> None:
        self._since: dict[str, dict[Any, float]] = {}

    def there_since(self, key: str, present: Iterable[T], now_ms: float) -> dict[T, float]:
        before: dict[T, float] = self._since.get(key, {})
        self._since[key] = there = {each: before.get(each, now_ms) for each in present}
        return there

    def ready_since(self, shard: Shard, topic: str, now_ms: float) -> dict[bytes, float]:
        """The ready tasks of a topic."""
        ghosts = shard.fields(shard.keys.ghost)
        present = {id for id in shard.entries(topic) if id not in ghosts}
        return self.there_since(shard.keys.ready(topic), present, now_ms)


class Punctuality:
    """Looks at shards after scripts. ``books``: those of all processes. ``is_open``: no topic is paused or limited.
    ``late_ms``: how late what is due may be.
    """

    def __init__(self, books: Sequence[Book], *, is_open: bool, late_ms: int = LATE_MS) -> None:
        self._books = books
        self._is_open = is_open
        self._late_ms = late_ms
        self._present = Present()

    def look(self, shard: Shard, *, now_ms: float) -> None:
        """Raises Violation. ``now_ms``: since the beginning of the run; all clocks are right."""
        if now_ms < STARTED_MS:
            return
        self._look_at_due(shard, now_ms)
        for topic in TOPICS if self._is_open else ():
            self._look_at_ready(shard, topic, now_ms)

    def _look_at_due(self, shard: Shard, now_ms: float) -> None:
        """From when it was due, or was there: an occurrence of a schedule that changed is pushed when it was due. Of
        keys the alarms of their lanes count.
        """
        due = [each for each in shard.scores(shard.keys.due).items() if each[1] < FAR]
        there = self._present.there_since(shard.keys.due, [*due, *shard.scores(shard.keys.alarms).items()], now_ms)
        since = min(
            (max(there_ms, due_ms - START_US / 1000) for (_, due_ms), there_ms in there.items()), default=now_ms
        )
        if (late_ms := now_ms - since) > self._late_ms:
            raise Violation(f"a task has been due in {shard.name} for {late_ms:.0f} ms, and is not dispatched")

    def _look_at_ready(self, shard: Shard, topic: str, now_ms: float) -> None:
        for id, since_ms in self._present.ready_since(shard, topic, now_ms).items():
            if now_ms - since_ms > LATE_MS and (who := self._waiting(topic, since_ms)):
                raise Violation(
                    f"{id.decode()} has been ready in {shard.name} for {now_ms - since_ms:.0f} ms, "
                    f"and {who} waits for it in a claim"
                )

    def _waiting(self, topic: str, since_ms: float) -> str:
        """Who claims this topic, and began before that instant."""
        for book in self._books:
            for call in reversed(book.calls):
                if call.what == "claim" and call.begin_us / 1000 <= since_ms - LATE_MS:
                    if not call.is_over and topic in call.topics:
                        return call.who
                    break
        return ""


class Fleet:
    """Workers that come and go: no ready task waits while one of them has a place for it.

    The bound is ``LATE_MS``, however processes have ended: what they leave behind makes no task late. It is a minute
    for a task that was ready when a process was killed or another fault came: that process may have been the one that
    was woken for it, and then nobody else is before the recheck.
    """

    def __init__(self) -> None:
        self._free_since: dict[Process, float] = {}
        self._running: dict[Process, Sized] = {}
        self._ready = Present()
        self._disturbed_ms = -math.inf
        """Until then a wake-up may have been lost."""

    def begins(self, process: Process, running: Sized) -> None:
        """``running``: what its handlers have, at any time."""
        self._running[process] = running

    def ends(self, process: Process) -> None:
        self._running.pop(process, None)
        self._free_since.pop(process, None)

    def disturbed(self, until_ms: float) -> None:
        self._disturbed_ms = max(self._disturbed_ms, until_ms)

    def look(self, shard: Shard, topics: Iterable[str], *, now_ms: float) -> None:
        """Raises Violation."""
        for process, running in list(self._running.items()):
            if process.is_dead:
                self.ends(process)
            elif len(running) >= PLACES:
                self._free_since.pop(process, None)
            else:
                self._free_since.setdefault(process, now_ms + STARTED_MS)
        free_ms = min(self._free_since.values(), default=math.inf)
        for topic in topics:
            for id, since_ms in self._ready.ready_since(shard, topic, now_ms).items():
                from_ms, most_ms = max(since_ms, free_ms), LATE_MS
                if self._disturbed_ms >= since_ms - LATE_MS:
                    from_ms, most_ms = max(from_ms, self._disturbed_ms), RECHECKED_MS
                if now_ms - from_ms > most_ms:
                    who = min(self._free_since, key=self._free_since.__getitem__)
                    raise Violation(
                        f"{id.decode()} has been ready in {shard.name} for {now_ms - since_ms:.0f} ms, "
                        f"and {who.name} has had a place for it for {now_ms - free_ms:.0f} ms"
                    )
