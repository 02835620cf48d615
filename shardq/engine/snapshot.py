"""One reading of a whole engine, and the rates from one reading to the next. Called by ``shardq top``, the dashboard
and the metrics, each at its own intervals.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardq.core.fleet.lateness import Lateness
from shardq.core.fleet.member import Member, unserved
from shardq.core.fleet.report import RouteStats, together
from shardq.core.layout.slots import leaving
from shardq.core.layout.topology import Topology
from shardq.core.model.task import TaskInfo
from shardq.core.resharding import Progress
from shardq.engine.health import Health
from shardq.engine.stats import ShardStats, Stats
from shardq.engine.sync import Engine
from shardq.features.history import History
from shardq.features.listing.forecast import Forecast

POINTS = 120
"""Figures that are remembered, for the sparklines."""

TIMELINE_S = 10.0
"""The time between two counts of what falls due: each is some sixty look-ups in every shard."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of an engine: its verdict, and what else the reader asked for. It is not atomic: shards are read
    one after the other.
    """

    at: float
    """Monotonic."""
    health: Health
    past: History | None = None
    future: Forecast | None = None
    dead: Sequence[TaskInfo] = ()
    topology: Topology | None = None
    progress: Progress | None = None
    """The progress of a change of the number of shards. None: not asked for, or a shard could not be read."""

    @property
    def stats(self) -> Stats:
        return self.health.stats

    @property
    def fleet(self) -> Sequence[Member]:
        return self.health.fleet

    @property
    def sinks(self) -> dict[str, RouteStats]:
        """Topic → what all processes have sent of it to its sink."""
        return {sink.topic: sink for sink in together(sink for member in self.fleet for sink in member.sinks)}

    @property
    def unserved(self) -> int | None:
        """The shards that no living dispatcher serves; None if that can't be told."""
        if self.topology is None or not (
            self.fleet or any(each.name == "no_dispatcher" for each in self.health.findings)
        ):
            return None
        return len(unserved(self.fleet, self.topology.span()))

    @property
    def unswept(self) -> int | None:
        """The shards from which a change of their number has still to move tasks; None if that can't be told."""
        progress = self.progress
        return None if progress is None else 0 if progress.done else progress.of - progress.swept

    @property
    def misplaced(self) -> int | None:
        """The tasks that such a change has still to move, by the counts; None if that can't be told."""
        if self.progress is None or self.topology is None or not self.unswept:
            return self.unswept
        shares = leaving(self.topology.shards, self.topology.priors)
        in_wrong_shards = sum(
            ((each.scheduled or 0) + (each.held or 0) + (each.dead or 0)) * shares[each.shard]
            for each in self.stats.shards
            if each.shard < len(shares)
        )
        return round(in_wrong_shards * self.unswept / self.progress.of)

    @property
    def nodes(self) -> list[NodeSnapshot]:
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
class NodeSnapshot:
    """A node, with the sums of its shards."""

    node: str
    shards: int
    unseen: int
    """Shards that could not be read. If none could, the counts are None."""
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


def _node(node: str, shards: Sequence[ShardStats], stats: Stats) -> NodeSnapshot:
    replication = stats.replication.get(node)
    seen = [shard for shard in shards if not shard.error]
    return NodeSnapshot(
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
    """The lateness of the tasks since an earlier snapshot, of all processes together."""
    return Lateness.total(late.since(before.get(name, Lateness())) for name, late in now.items())


@dataclass(slots=True)
class Snapshots:
    """The last snapshots of an engine, and the rates between them. Used by one thread."""

    newest: Snapshot | None = None
    trouble: str = ""
    """Why the last reading failed; empty if it did not."""
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
    _kept: deque[Snapshot] = field(default_factory=deque)
    """The snapshots of the last seconds, two at least: that of a thousand shards is large."""

    def add(self, snapshot: Snapshot, *, over_s: float = 10.0) -> None:
        """Takes the newest snapshot. Lateness is over the last ``over_s``: reports come each second at most."""
        self.newest, self.trouble = snapshot, ""
        rates = snapshot.stats.rates
        if rates is not None:
            self.dispatched.append(rates.dispatched)
        before = self._kept[-1] if self._kept else None
        self._kept.append(snapshot)
        if before is None:
            return
        newest = recent(before.dispatch, snapshot.dispatch)
        if newest.count:
            self.late_ms.append(newest.p99_ms or 0)
        while len(self._kept) > 2 and snapshot.at - self._kept[0].at > over_s:
            self._kept.popleft()
        base = self._kept[0]
        self.late = recent(base.dispatch, snapshot.dispatch)
        self.picked_up = recent(base.pickup, snapshot.pickup)
        seconds = snapshot.at - base.at
        done = sum((handled(snapshot) - handled(base)).values())
        self.handled_per_s = done / seconds if seconds > 0 else None
        then, now = base.stats.replication, snapshot.stats.replication
        used = {node: now[node].cpu_s - then[node].cpu_s for node in now if node in then}
        self.cores = {node: max(0.0, cpu_s) / seconds for node, cpu_s in used.items()} if seconds > 0 else {}


def handled(snapshot: Snapshot) -> Counter[str]:
    """Worker → the tasks that it has handled, with any outcome."""
    return Counter({each.name: each.handled + each.failed + each.snoozed for each in snapshot.fleet})


class SnapshotReader:
    """Reads snapshots of one engine. Used by one thread.

    ``timeline``: with what was dispatched in the last hour and falls due in the next, counted every ``TIMELINE_S``.
    ``dead``: with so many of the tasks that died last. ``resharding``: with the topology, and how far a change of the
    number of shards is.
    """

    def __init__(self, engine: Engine, *, timeline: bool = False, dead: int = 0, resharding: bool = False) -> None:
        self._engine = engine
        self._timeline = timeline
        self._dead = dead
        self._resharding = resharding
        self._counted: tuple[float, History, Forecast] | None = None

    def read(self) -> Snapshot:
        engine, now = self._engine, time.monotonic()
        health = engine.health()
        topology = engine.topology if self._resharding else None
        if health.stats.missing:
            return Snapshot(now, health, topology=topology)  # all else asks every shard, and fails with one
        past = future = progress = None
        if self._timeline:
            if self._counted is None or now - self._counted[0] >= TIMELINE_S:
                self._counted = now, engine.history("hour"), engine.forecast("hour")
            _, past, future = self._counted
        dead = engine.tasks(state="dead", newest=True, limit=self._dead) if self._dead and health.stats.dead else []
        if self._resharding:
            progress = engine.resize(dry_run=True).progress()
        return Snapshot(now, health, past, future, dead, topology, progress)
