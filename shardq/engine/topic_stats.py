"""The topics of an engine as ``stats()`` tells them: counted where the server counts by topic, else estimated from ids
that are drawn at random.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from shardq.core.calls.observe import DRAWN, ShardCounts
from shardq.core.layout.topology import Limit, Route, Topology
from shardq.engine.rates import Interval

NINETEEN_OF_TWENTY = 1.96
"""The error of an estimate is within so many standard deviations, nineteen times of twenty."""


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one topic, over all shards.

    >>> for topic, seen in engine.stats().topics.items():
    ...     print(topic, seen.scheduled, "±", seen.estimated.get("scheduled", 0), seen.ready, seen.oldest_ready)
    """

    scheduled: int
    ready: int
    leased: int
    dead: int
    estimated: Mapping[Literal["scheduled", "leased", "dead"], int]
    """Those of the counts that are estimates → by how many tasks they may be off, nineteen times of twenty: of a shard
    with many tasks in a state, only some ids are drawn to tell their topics. A topic with few tasks may show none.
    """
    dispatched: int
    """Moved to ready lists since the shards were opened. A task that was given back unbegun counts once."""
    died: int
    """Tasks that died since the shards came into use: counted when they die, whatever became of them since."""
    oldest_ready: float | None
    """Seconds that the oldest ready task has waited at least, as far as anybody has looked: the servers note what each
    ``stats()`` and ``health()`` finds. So it is 0 at the first look, and with regular looks nearly what it is. None: no
    task is ready.
    """
    dispatched_per_s: float | None
    """Since a look of this engine a second or longer ago; None at the first."""
    taken_per_s: float | None
    """Tasks that left the ready list, for a consumer or a route; likewise."""
    paused: bool
    """True if its tasks are not given out."""
    limit: Limit | None
    route: Route | None
    """Where its payloads go; a URL without its secrets."""

    @property
    def held(self) -> bool:
        """True if its ready tasks are not for consumers now."""
        return self.paused or self.route is not None


def topics_of(counts: Iterable[ShardCounts], topology: Topology, interval: Interval | None) -> dict[str, TopicStats]:
    """Adds up the topics of all shards that were seen, and what is set for them; sorted by name."""
    ready, dispatched, died = Counter[str](), Counter[str](), Counter[str]()
    waited: dict[str, int] = {}
    by_state = {state: _Estimate() for state in DRAWN}
    for shard in counts:
        ready.update(shard.ready)
        dispatched.update(shard.dispatched)
        died.update(shard.died)
        for topic, ms in shard.waited_ms.items():
            waited[topic] = max(ms, waited.get(topic, 0))
        for state in DRAWN:
            by_state[state].add(shard.drawn[state], getattr(shard, state))
    names = {*ready, *dispatched, *topology.paused, *topology.limits, *topology.routes}
    return {
        topic: TopicStats(
            scheduled=round(by_state["scheduled"].counts[topic]),
            ready=ready[topic],
            leased=round(by_state["leased"].counts[topic]),
            dead=round(by_state["dead"].counts[topic]),
            estimated={state: each.error(topic) for state, each in by_state.items() if each.unseen},
            dispatched=dispatched[topic],
            died=died[topic],
            oldest_ready=waited[topic] / 1000 if topic in waited else None,
            dispatched_per_s=interval.dispatched.get(topic, 0.0) if interval else None,
            taken_per_s=interval.taken.get(topic, 0.0) if interval else None,
            paused=topic in topology.paused,
            limit=topology.limits.get(topic),
            route=route.masked if (route := topology.routes.get(topic)) else None,
        )
        for topic in sorted(names)
    }


class _Estimate:
    """The tasks of one state by their topics."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, float] = defaultdict(float)
        self.unseen = 0.0
        """The variance of the count of a topic of which nothing was drawn; 0: every task was."""
        self._more: defaultdict[str, float] = defaultdict(float)
        """Topic → what its variance is more than that."""

    def add(self, drawn: Mapping[str, int], count: int) -> None:
        """Adds the tasks of one shard."""
        sample = sum(drawn.values())
        if sample == count:
            for topic, found in drawn.items():
                self.counts[topic] += found
            return
        none = _variance(count, sample, 0)
        self.unseen += none
        for topic, found in drawn.items():
            self.counts[topic] += count * found / sample
            self._more[topic] += _variance(count, sample, found) - none

    def error(self, topic: str) -> int:
        """The number of tasks by which the count of the topic may be off."""
        return math.ceil(NINETEEN_OF_TWENTY * math.sqrt(self.unseen + self._more.get(topic, 0.0)))


def _variance(count: int, sample: int, found: int) -> float:
    """That of the estimate for a topic of which so many were found in a sample without repetition. One more is taken to
    be found, and one more not: of a topic of which none was, there may be some.
    """
    part = (found + 1) / (sample + 2)
    return count * count * part * (1 - part) / max(1, sample) * (1 - sample / count)
