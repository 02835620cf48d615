"""The rates of an engine: what its counters of shards became between two looks of the same process. Called by ``base``,
which keeps one meter for an engine.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

import msgspec

from shardq.core.calls.observe import ShardCounts
from shardq.engine.control import CountsByShard
from shardq.errors import ShardqError

LEAST_S = 1.0
"""Rates are over this time, or the time between two looks if that is longer."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that went through an engine in a second, since a look of the same engine a second or longer ago. Shards
    that could not be seen in both looks are not counted.

    >>> if rates := engine.stats().rates:
    ...     print(rates.scheduled, rates.dispatched, rates.taken, rates.forwarded)
    """

    seconds: float
    """The time between the two looks."""
    scheduled: float
    """Tasks that became scheduled: pushes and retries, less those that were cancelled before they were due."""
    dispatched: float
    """Tasks that became ready."""
    taken: float
    """Tasks that left their ready list: claimed by consumers, or forwarded."""
    forwarded: float
    """Tasks that a dispatcher put on the list of a route in the same slot."""


@dataclass(frozen=True)
class Interval:
    """The rates between two looks."""

    total: Rates
    dispatched_of_shard: dict[int, float] = field(default_factory=dict)
    dispatched: dict[str, float] = field(default_factory=dict)
    """Topic → tasks dispatched in a second."""
    taken: dict[str, float] = field(default_factory=dict)


class RateMeter:
    """Keeps the looks of the last second, and the one before them."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[int, ShardCounts]]] = deque()
        self._lock = threading.Lock()
        """Threads may share an engine."""

    def note(self, counts_by_shard: CountsByShard, now: float) -> Interval | None:
        """Notes a look at a monotonic instant. Returns what happened since the one a second before; None at the
        first.
        """
        seen = {keys.shard: counts for keys, counts in counts_by_shard if not isinstance(counts, ShardqError)}
        with self._lock:
            looks = self._looks
            looks.append((now, seen))
            while len(looks) > 2 and now - looks[1][0] >= LEAST_S:
                looks.popleft()
            began, before = looks[0]
        return _between(before, seen, now - began) if now > began else None


def _between(before: dict[int, ShardCounts], now: dict[int, ShardCounts], seconds: float) -> Interval:
    scheduled = forwarded = reaped = 0
    of_shard = dict.fromkeys(now, 0.0)
    dispatched, taken = Counter[str](), Counter[str]()
    for shard in before.keys() & now.keys():
        old, new = before[shard], now[shard]
        scheduled += new.scheduled - old.scheduled
        forwarded += new.forwarded - old.forwarded
        reaped += new.reaped - old.reaped
        for topic in new.dispatched:
            came = new.dispatched[topic] - old.dispatched.get(topic, 0)
            dispatched[topic] += came
            taken[topic] += came - (new.ready.get(topic, 0) - old.ready.get(topic, 0))
            of_shard[shard] += max(0, came) / seconds
    came, went = sum(dispatched.values()), sum(taken.values()) + reaped

    def rate(count: float) -> float:
        # a failover, or tasks that moved, may have taken counts back
        return round(max(0.0, count / seconds), 3)

    return Interval(
        Rates(
            seconds=round(seconds, 3),
            scheduled=rate(scheduled + came),
            dispatched=rate(came),
            taken=rate(went),
            forwarded=rate(forwarded),
        ),
        dispatched_of_shard={shard: rate(each * seconds) for shard, each in of_shard.items()},
        dispatched={topic: rate(count) for topic, count in dispatched.items()},
        taken={topic: rate(count) for topic, count in taken.items()},
    )
