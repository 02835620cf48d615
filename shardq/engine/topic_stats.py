"""The topics of an engine as ``stats()`` tells them: counted where the server counts by topic, else estimated from ids
that are drawn at random.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Literal

import msgspec

from shardq.calls.observe import DRAWN, Drawn, ShardCounts
from shardq.engine.rates import Interval
from shardq.layout.topology import Limit, Route, Topology


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one topic, over all shards.

    >>> for topic, seen in engine.stats().topics.items():
    ...     print(topic, seen.scheduled, seen.ready, seen.oldest_ready, seen.paused, seen.limit, seen.estimated)
    """

    scheduled: int
    ready: int
    leased: int
    dead: int
    estimated: tuple[Literal["scheduled", "leased", "dead"], ...]
    """Those of the counts that are estimates: of a shard with many tasks in a state, only some ids are drawn to tell
    their topics. With even shards the error is two hundredths of all tasks in the state at most, nineteen times of
    twenty; a topic with few tasks may show none.
    """
    dispatched: int
    """Moved to ready lists since the shards were opened."""
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
    by_state: dict[Drawn, defaultdict[str, float]] = {state: defaultdict(float) for state in DRAWN}
    estimated: dict[Drawn, bool] = dict.fromkeys(DRAWN, False)
    for shard in counts:
        ready.update(shard.ready)
        dispatched.update(shard.dispatched)
        died.update(shard.died)
        for topic, ms in shard.waited_ms.items():
            waited[topic] = max(ms, waited.get(topic, 0))
        for state in DRAWN:
            estimated[state] |= _add(by_state[state], shard.drawn[state], getattr(shard, state))
    names = {*ready, *dispatched, *topology.paused, *topology.limits, *topology.routes, *chain(*by_state.values())}
    return {
        topic: TopicStats(
            scheduled=round(by_state["scheduled"][topic]),
            ready=ready[topic],
            leased=round(by_state["leased"][topic]),
            dead=round(by_state["dead"][topic]),
            estimated=tuple(state for state in DRAWN if estimated[state]),
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


def _add(total: defaultdict[str, float], drawn: Mapping[str, int], count: int) -> bool:
    """Adds the tasks of one shard and state. Returns True if not all of them were drawn."""
    sample = sum(drawn.values())
    for topic, found in drawn.items():
        total[topic] += count * found / sample
    return sample != count
