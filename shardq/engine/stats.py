"""The result of ``engine.stats()``. Each shard is read at another instant, so totals are no snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

from shardq.core.calls.node_info import Replication
from shardq.core.calls.observe import ShardCounts
from shardq.core.dispatcher import Lateness, PollerReport, RouteFault
from shardq.core.drivers.routing import ConnectionCounts
from shardq.core.fleet.report import SinkStats
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import EngineSettings
from shardq.core.topology_cache import TopologyCache
from shardq.engine.control import CountsByShard
from shardq.engine.rates import Interval, Rates
from shardq.engine.topic_stats import TopicStats, topics_of
from shardq.errors import ShardqError
from shardq.features.replay.journal import ReplayStats
from shardq.features.schedules.declaring import Summary
from shardq.features.schedules.scheduler import SchedulerReport
from shardq.features.spool.commands import SpoolStats


class ShardStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one shard.

    >>> for shard in engine.stats().shards:
    ...     print(shard.shard, shard.node, shard.scheduled, shard.poller, shard.error)
    """

    shard: int
    node: str
    error: str | None = None
    """The reason why it could not be read, in which case each of its counts is None; None if it was."""
    scheduled: int | None
    ready: int | None
    leased: int | None
    dead: int | None
    dispatched: int | None
    """Moved to ready lists since the shard was opened."""
    forwarded: int | None
    reaped: int | None
    """Leases that ran out and whose task went back to its ready list."""
    buried: int | None
    """Leases that ran out once too often."""
    ready_by_topic: Mapping[str, int]
    dispatched_by_topic: Mapping[str, int]
    dispatched_per_s: float | None
    """Since a look of this engine a second or longer ago; None at the first."""
    head_age: float | None
    """Seconds since the first scheduled task was due: negative while it is still to come; None without one."""
    late_ms: int | None
    """Lateness of the task dispatched last."""
    lateness: Lateness | None
    """The lateness of tasks that this process's poller dispatched; None when the shard is served elsewhere."""
    poller: Literal["starting", "running", "failing", "stopped", "elsewhere"]
    """The state of this process's poller; ``elsewhere``: another process serves the shard, or none."""
    poller_error: str | None
    poller_idle: float | None
    """Seconds since this process's poller completed a step; None when the shard is served elsewhere."""


class RelayStats(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of an outbox relay, since it was made.

    >>> for relay in engine.stats().relays:
    ...     print(relay.table, relay.moved, relay.failed, relay.oldest_s, relay.problem)
    """

    table: str
    moved: int
    """Rows that were pushed and removed, or marked."""
    refused: int
    """Those of them whose id was taken, with ``on_conflict="reject"``."""
    retried: int
    """Rows that a step could not move: they stay, and are tried again."""
    failed: int
    """Rows in the table that were refused too often, and are kept until somebody retries or drops them."""
    oldest_s: float
    """How far the relay is behind: the seconds that the oldest row had waited when the last step read it, by this
    machine's clock; 0 if none waited.
    """
    problem: str
    """The reason why rows wait, with the first row, its id and the shards; empty while rows are moved."""


class Relay(Protocol):
    """An outbox relay, as an engine knows it."""

    def stats(self) -> RelayStats: ...

    def catch_up(self) -> None:
        """Moves all rows that wait, if the relay was started where no threads run: under the clock of a test."""


class ScheduleStats(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules of recurring tasks."""

    count: int
    paused: int
    pushed: int
    """Occurrences that this process's scheduler has pushed."""
    overdue: tuple[str, ...]
    """The names of schedules with occurrences that are due, and that nobody has pushed."""
    unreadable: tuple[str, ...]
    """The names of schedules that can't be read here, and are not counted: another version wrote them."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all shards. The totals add up what was read shard by shard, one after the other. Shards that could
    not be read are ``missing``, and in no total.

    >>> stats = engine.stats()
    >>> print(stats.scheduled, stats.ready, stats.leased, stats.dead, stats.head_age)
    >>> print("without the shards", stats.missing) if stats.missing else None
    >>> print({topic: seen.ready for topic, seen in stats.topics.items()})
    """

    name: str
    epoch: int
    settings: EngineSettings
    """The settings of the engine, as this process knows them."""
    server: str
    missing: tuple[int, ...]
    """The shards that could not be read."""
    is_blind: bool
    """True if no shard could be read, so that every total is 0 and says nothing."""
    scheduled: int
    ready: int
    leased: int
    dead: int
    dispatched: int
    forwarded: int
    died: int
    """Tasks that died since their shards came into use: counted when they die, whatever became of them since."""
    died_lately: int
    """Dead tasks that died in the last ten minutes."""
    trimmed: int
    """Dead tasks that were removed since the shards were opened, because they were older than ``dead_age`` or more than
    ``dead_count``.
    """
    trimmed_age: float | None
    """Seconds since one was last removed because there were more than ``dead_count``; None if none ever was."""
    topics: Mapping[str, TopicStats]
    """Name → topic, for every topic that has, or had, a task, or for which something is set."""
    rates: Rates | None
    """The tasks of a second since a look of this engine a second or longer ago; None at the first."""
    head_age: float | None
    """Seconds since the first scheduled task of all shards was due: negative while it is still to come; None without
    one.
    """
    lateness: Lateness
    """The lateness of tasks that the pollers of this process dispatched."""
    shards: list[ShardStats]
    """Each shard; empty with ``stats(shards=False)``."""
    dispatchers: tuple[str, ...]
    """The processes with pollers, as this process last heard; empty when it has none."""
    failing_routes: tuple[RouteFault, ...]
    """Routes that this process can't serve now: topic, list, reason, shards."""
    sinks: tuple[SinkStats, ...]
    """The topics that this process forwards to URLs and functions. ``fleet()`` has those of all processes."""
    schedules: ScheduleStats | None
    """The number of schedules; None if they could not be read."""
    connections: Mapping[str, ConnectionCounts]
    """Node → the connections of this engine, and their bound."""
    replication: Mapping[str, Replication]
    """Node → the writes that a failover could lose. Nodes that could not be asked are not among them."""
    relays: tuple[RelayStats, ...]
    """The outbox relays of this process that move rows to this engine."""
    spool: SpoolStats | None = None
    """The commands that wait in the file of ``spool=``; None for an engine without one."""
    replay: ReplayStats | None
    """The memory and the replays of this engine after failovers; None without ``replay=``."""

    def shown(self, count: int, *, mark: str = "") -> str:
        """A count over all shards as a view shows it: never a number where none was read.

        >>> print(engine.stats().shown(1234))           # 1,234; ≥ 1,234 without some shards; – without all of them
        """
        if self.is_blind:
            return "–"
        return f"{'≥ ' if self.missing else ''}{mark}{count:,}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The part of ``stats`` that was read from the servers."""

    counts: CountsByShard
    nodes: Mapping[int, str]
    """Slot → its node."""
    replication: Mapping[str, Replication]
    schedules: Summary | None
    server: str
    connections: Mapping[str, ConnectionCounts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The part of ``stats`` that a process knows of itself. The defaults are those of one without pollers."""

    relays: tuple[RelayStats, ...]
    spool: SpoolStats | None
    replay: ReplayStats | None
    reports: Mapping[int, PollerReport] = field(default_factory=dict)
    failing_routes: tuple[RouteFault, ...] = ()
    sinks: tuple[SinkStats, ...] = ()
    scheduler: SchedulerReport | None = None
    dispatchers: tuple[str, ...] = ()


def _shard(
    keys: ShardKeys,
    seen: ShardCounts | ShardqError,
    node: str,
    report: PollerReport | None,
    interval: Interval | None,
) -> ShardStats:
    counts = None if isinstance(seen, ShardqError) else seen
    return ShardStats(
        shard=keys.shard,
        node=node,
        error=f"{type(seen).__name__}: {seen}" if isinstance(seen, ShardqError) else None,
        scheduled=counts.scheduled if counts else None,
        ready=sum(counts.ready.values()) if counts else None,
        leased=counts.leased if counts else None,
        dead=counts.dead if counts else None,
        dispatched=sum(counts.dispatched.values()) if counts else None,
        forwarded=counts.forwarded if counts else None,
        reaped=counts.reaped if counts else None,
        buried=counts.buried if counts else None,
        ready_by_topic=counts.ready if counts else {},
        dispatched_by_topic=counts.dispatched if counts else {},
        dispatched_per_s=interval.dispatched_of_shard.get(keys.shard) if interval else None,
        head_age=counts.head_age if counts else None,
        late_ms=counts.late_ms if counts else None,
        lateness=report.lateness if report else None,
        poller=report.state if report else "elsewhere",
        poller_error=report.error if report else None,
        poller_idle=report.idle_s if report else None,
    )


def stats_of(cache: TopologyCache, seen: Seen, here: Here, interval: Interval | None, *, shards: bool) -> Stats:
    """``shards``: False leaves the list of shards empty."""
    rows = [
        _shard(keys, found, seen.nodes[keys.slot], here.reports.get(keys.shard), interval)
        for keys, found in seen.counts
    ]
    counted = [counts for _, counts in seen.counts if not isinstance(counts, ShardqError)]
    schedules = None
    if (summary := seen.schedules) is not None:
        schedules = ScheduleStats(
            count=summary.count,
            paused=summary.paused,
            pushed=here.scheduler.pushed if here.scheduler else 0,
            overdue=summary.overdue,
            unreadable=summary.unreadable,
        )
    return Stats(
        name=cache.name,
        epoch=cache.topology.epoch,
        settings=cache.topology.settings,
        server=seen.server,
        missing=tuple(keys.shard for keys, counts in seen.counts if isinstance(counts, ShardqError)),
        is_blind=not counted,
        scheduled=sum(counts.scheduled for counts in counted),
        ready=sum(sum(counts.ready.values()) for counts in counted),
        leased=sum(counts.leased for counts in counted),
        dead=sum(counts.dead for counts in counted),
        dispatched=sum(sum(counts.dispatched.values()) for counts in counted),
        forwarded=sum(counts.forwarded for counts in counted),
        died=sum(count for counts in counted for count in counts.died.values()),
        died_lately=sum(counts.died_lately for counts in counted),
        trimmed=sum(counts.trimmed for counts in counted),
        trimmed_age=min(
            (max(0.0, c.now_us / 1e6 - c.trimmed_ms / 1e3) for c in counted if c.trimmed_ms is not None), default=None
        ),
        topics=topics_of(counted, cache.topology, interval),
        rates=interval.total if interval and counted else None,
        head_age=max((s.head_age for s in rows if s.head_age is not None), default=None),
        lateness=Lateness.total(s.lateness for s in rows if s.lateness),
        shards=rows if shards else [],
        dispatchers=here.dispatchers,
        failing_routes=here.failing_routes,
        sinks=here.sinks,
        schedules=schedules,
        connections=seen.connections,
        replication=seen.replication,
        relays=here.relays,
        spool=here.spool,
        replay=here.replay,
    )
