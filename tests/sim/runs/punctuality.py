"""Nothing waits for a look-round: while nothing is wrong, what is due is dispatched at once, and whoever waits for it
in a claim gets it at once. While one dispatcher is cut off from a node, another one dispatches what is due there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from tests.judge.history import Book
from tests.judge.workload import TOPICS
from tests.sim.invariants import Shard, Violation
from tests.sim.world.hub import START_US

T = TypeVar("T")

LATE_MS = 60
"""More than it takes to hand a shard over to another process, and far less than any look-round."""

CUT_OFF_MS = 10_000
"""More than it takes until another dispatcher serves what one can't reach: two calls that time out, a heartbeat, and
another if the first deputy is the one that is cut off.
"""

STARTED_MS = 2000
"""By then all dispatchers of a run listen."""


class Punctuality:
    """Looks at shards after scripts. ``books``: those of all processes. ``is_open``: no topic is paused or limited.
    ``late_ms``: how late what is due may be.
    """

    def __init__(self, books: Sequence[Book], *, is_open: bool, late_ms: int = LATE_MS) -> None:
        self._books = books
        self._is_open = is_open
        self._late_ms = late_ms
        self._since: dict[str, dict[Any, float]] = {}
        """By key of a shard: what is there, and since when."""

    def look(self, shard: Shard, *, now_ms: float) -> None:
        """Raises Violation. ``now_ms``: since the beginning of the run; all clocks are right."""
        if now_ms < STARTED_MS:
            return
        self._look_at_due(shard, now_ms)
        for topic in TOPICS if self._is_open else ():
            self._look_at_ready(shard, topic, now_ms)

    def _look_at_due(self, shard: Shard, now_ms: float) -> None:
        """From when it was due, or was there: an occurrence of a schedule that changed is pushed when it was due."""
        there = self._there_since(shard.keys.due, shard.scores(shard.keys.due).items(), now_ms)
        since = min(
            (max(there_ms, due_ms - START_US / 1000) for (_, due_ms), there_ms in there.items()), default=now_ms
        )
        if (late_ms := now_ms - since) > self._late_ms:
            raise Violation(f"a task has been due in {shard.name} for {late_ms:.0f} ms, and is not dispatched")

    def _look_at_ready(self, shard: Shard, topic: str, now_ms: float) -> None:
        ghosts = shard.fields(shard.keys.ghost)
        present = {id for id in shard.entries(topic) if id not in ghosts}
        for id, since_ms in self._there_since(shard.keys.ready(topic), present, now_ms).items():
            if now_ms - since_ms > LATE_MS and (who := self._waiting(topic, since_ms)):
                raise Violation(
                    f"{id.decode()} has been ready in {shard.name} for {now_ms - since_ms:.0f} ms, "
                    f"and {who} waits for it in a claim"
                )

    def _there_since(self, key: str, present: Iterable[T], now_ms: float) -> dict[T, float]:
        before: dict[T, float] = self._since.get(key, {})
        self._since[key] = there = {each: before.get(each, now_ms) for each in present}
        return there

    def _waiting(self, topic: str, since_ms: float) -> str:
        """Who claims this topic, and began before that instant."""
        for book in self._books:
            for call in reversed(book.calls):
                if call.what == "claim" and call.begin_us / 1000 <= since_ms - LATE_MS:
                    if not call.is_over and topic in call.topics:
                        return call.who
                    break
        return ""
