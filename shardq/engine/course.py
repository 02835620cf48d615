"""An engine as it was seen again and again: looks, and what became of it from one to the next. Pure. Called by ``shardq
top`` and the dashboard, which look.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardq.engine.health import Health
from shardq.engine.stats import ShardStats, Stats
from shardq.fleet.lateness import Lateness
from shardq.fleet.member import Member
from shardq.fleet.sinks import SinkStats, together
from shardq.history.history import History
from shardq.listing.forecast import Forecast
from shardq.model.task import TaskInfo

POINTS = 120
"""Figures that are remembered, for the sparklines."""


@dataclass(frozen=True, slots=True)
class Look:
    """The engine as it was seen at one time."""

    at: float
    """Monotonic."""
    health: Health
    past: History | None = None
    future: Forecast | None = None
    dead: Sequence[TaskInfo] = ()

    @property
    def stats(self) -> Stats:
        return self.health.stats

    @property
    def fleet(self) -> Sequence[Member]:
        return self.health.fleet

    @property
    def sinks(self) -> dict[str, SinkStats]:
        """Topic → what all processes have sent of it to its sink."""
        return {sink.topic: sink for sink in together(sink for member in self.fleet for sink in member.sinks)}

    @property
    def nodes(self) -> list[NodeLook]:
        """The nodes that hold shards, by their address."""
        of_node = defaultdict[str, list[ShardStats]](list)
        for shard in self.stats.shards:
            of_node[shard.node].append(shard)
        return [_node(node, shards, self.stats) for node, shards in sorted(of_node.items())]

    @property
    def dispatch(self) -> dict[str, Lateness]:
        """Dispatcher → its histogram, all topics together."""
        return {each.name: Lateness.total(each.dispatch_lateness.values()) for each in self.fleet}

    @property
    def pickup(self) -> dict[str, Lateness]:
        return {each.name: Lateness.total(each.pickup_lateness.values()) for each in self.fleet}


@dataclass(frozen=True, slots=True)
class NodeLook:
    """A node, and what its shards hold together."""

    node: str
    shards: int
    unseen: int
    """Those of them that could not be read. If that is all, the counts are None."""
    scheduled: int | None
    ready: int | None
    per_s: float | None
    behind: float | None
    """Seconds that its first scheduled task is overdue; None if it is not."""
    replicas: int | None
    unconfirmed: int | None
    silent: Mapping[str, int | None]
    """Replica → seconds since it confirmed anything; None while it copies the whole data set."""
    memory: int | None
    maxmemory: int | None
    """The most that it may use; 0: as much as there is."""


def _node(node: str, shards: Sequence[ShardStats], stats: Stats) -> NodeLook:
    replication = stats.replication.get(node)
    seen = [shard for shard in shards if not shard.error]
    return NodeLook(
        node,
        len(shards),
        len(shards) - len(seen),
        sum(shard.scheduled or 0 for shard in seen) if seen else None,
        sum(shard.ready or 0 for shard in seen) if seen else None,
        sum(shard.dispatched_per_s or 0.0 for shard in seen) if seen else None,
        max((late for shard in shards if (late := behind(shard.head_age)) is not None), default=None),
        replication.replicas if replication else None,
        replication.unconfirmed if replication else None,
        replication.silent if replication else {},
        replication.memory if replication else None,
        replication.maxmemory if replication else None,
    )


def behind(age: float | None) -> float | None:
    """How long the first task of a shard is overdue; None if it is not."""
    return age if age is not None and age > 0 else None


def recent(before: dict[str, Lateness], now: dict[str, Lateness]) -> Lateness:
    """The lateness of the tasks since an earlier look, of all processes together."""
    return Lateness.total(late.since(before.get(name, Lateness())) for name, late in now.items())


@dataclass(slots=True)
class Course:
    """The last looks, and what they became from one to the next. Used by one thread."""

    look: Look | None = None
    trouble: str = ""
    """Why the last look failed; empty if it did not."""
    dispatched: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    """Tasks in a second."""
    late_ms: deque[float] = field(default_factory=lambda: deque(maxlen=POINTS))
    """The 99th percentile of each interval in which anything was dispatched."""
    late: Lateness = field(default_factory=Lateness)
    """The lateness of the last seconds."""
    picked_up: Lateness = field(default_factory=Lateness)
    handled_per_s: float | None = None
    cores: dict[str, float] = field(default_factory=dict)
    """Node → the share of a core that its server used."""
    _looks: deque[Look] = field(default_factory=deque)
    """Those of the last seconds, two at least: a look at a thousand shards is large."""

    def note(self, look: Look, *, over_s: float = 10.0) -> None:
        """Takes the newest look. Lateness is over the last ``over_s``: reports come each second at most."""
        self.look, self.trouble = look, ""
        rates = look.stats.rates
        if rates is not None:
            self.dispatched.append(rates.dispatched)
        before = self._looks[-1] if self._looks else None
        self._looks.append(look)
        if before is None:
            return
        newest = recent(before.dispatch, look.dispatch)
        if newest.count:
            self.late_ms.append(newest.p99_ms or 0)
        while len(self._looks) > 2 and look.at - self._looks[0].at > over_s:
            self._looks.popleft()
        base = self._looks[0]
        self.late = recent(base.dispatch, look.dispatch)
        self.picked_up = recent(base.pickup, look.pickup)
        seconds = look.at - base.at
        done = sum((handled(look) - handled(base)).values())
        self.handled_per_s = done / seconds if seconds > 0 else None
        then, now = base.stats.replication, look.stats.replication
        used = {node: now[node].cpu_s - then[node].cpu_s for node in now if node in then}
        self.cores = {node: max(0.0, cpu_s) / seconds for node, cpu_s in used.items()} if seconds > 0 else {}


def handled(look: Look) -> Counter[str]:
    """Worker → the tasks that it has handled, whatever came of it."""
    return Counter({each.name: each.handled + each.failed + each.snoozed for each in look.fleet})
