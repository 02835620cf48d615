"""The result of ``engine.stats()``. Each shard is read at another instant, so totals are no snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec

from shardq.calls.observe import Replication, ShardCounts
from shardq.dispatcher import Lateness, PollerReport, RouteFault
from shardq.drivers.router import ConnectionCounts
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Limit, Route
from shardq.replay.stats import ReplayStats
from shardq.schedules.declaring import Summary
from shardq.schedules.scheduler import SchedulerReport
from shardq.spool.stats import SpoolStats
from shardq.spool.stats import problems as problems_of_spool
from shardq.topology_cache import TopologyCache

if TYPE_CHECKING:
    from shardq.engine.advice import Advice
    from shardq.worker.processor import Processor

OVERDUE_S = 10.0
"""A task that is due for longer than this is a problem. Other dispatchers take over from a killed one within four
seconds, from a stopped one at once, and no shard that is served falls this far behind.
"""

NAMED = 5
"""The most shards that a sentence names; it counts the others."""


class ShardStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one shard.

    >>> for shard in engine.stats().shards:
    ...     print(shard.shard, shard.node, shard.scheduled, shard.poller, shard.error)
    """

    shard: int
    node: str
    error: str | None = None
    """The reason why it could not be read, in which case its counts say nothing; None if it was."""
    scheduled: int
    ready: int
    leased: int
    dead: int
    dispatched: int
    """Moved to ready lists since the shard was opened."""
    forwarded: int
    reaped: int
    """Leases that ran out and whose task went back to its ready list."""
    buried: int
    """Leases that ran out once too often."""
    ready_by_topic: Mapping[str, int]
    dispatched_by_topic: Mapping[str, int]
    head_age: float | None
    """Seconds since the first scheduled task was due: negative while it is still to come; None without one."""
    late_ms: int | None
    """Lateness of the task dispatched last."""
    lateness: Lateness | None
    """The lateness of tasks that this process's poller dispatched; None when the shard is served elsewhere."""
    poller: Literal["starting", "running", "failing", "stopped", "elsewhere"]
    """The state of this process's poller; ``elsewhere``: another process serves the shard, or none."""
    poller_error: str | None


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
    failed: int
    """Pushes of rows that failed: the rows stay, and are tried again."""
    oldest_s: float
    """How far the relay is behind: the seconds that the oldest row had waited when the last step read it, by this
    machine's clock; 0 if none waited.
    """
    problem: str
    """The error of the last step, while steps fail; else empty."""


class Relay(Protocol):
    """An outbox relay, as an engine knows it."""

    def stats(self) -> RelayStats: ...


class ScheduleStats(msgspec.Struct, frozen=True, kw_only=True):
    """The schedules of recurring tasks."""

    count: int
    paused: int
    pushed: int
    """Occurrences that this process's scheduler has pushed."""


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of all shards. The totals add up what was read shard by shard, one after the other.

    >>> stats = engine.stats()
    >>> print(stats.scheduled, stats.ready, stats.dead, stats.healthy, stats.problems)
    """

    name: str
    epoch: int
    server: str
    scheduled: int
    ready: int
    leased: int
    dead: int
    dispatched: int
    forwarded: int
    ready_by_topic: Mapping[str, int]
    dispatched_by_topic: Mapping[str, int]
    lateness: Lateness
    """The lateness of tasks that the pollers of this process dispatched."""
    shards: list[ShardStats]
    dispatchers: tuple[str, ...]
    """The processes with pollers, as this process last heard; empty when it has none."""
    paused: tuple[str, ...]
    """Topics that are not given out."""
    limits: Mapping[str, Limit]
    """Topics with a rate or concurrency limit."""
    routes: Mapping[str, Route]
    """Topics whose payloads go to a list."""
    failing_routes: tuple[RouteFault, ...]
    """Routes that this process can't serve now: topic, list, reason, shards."""
    schedules: ScheduleStats | None
    """The number of schedules; None if they could not be read."""
    healthy: bool
    """True if there are no problems."""
    problems: tuple[str, ...]
    """A sentence each: shards that could not be seen, pollers, routes, schedules, workers and outbox relays of this
    process that fail or stand still, shards with tasks that are overdue by more than ``OVERDUE_S``, whoever should
    serve them, and servers that have evicted keys and go on doing so."""
    warnings: tuple[str, ...]
    """Settings of the servers that can lose tasks, what is done without or late because an ACL, a proxy or a server
    forbids it, and limits that are too low for the pollers of this process, should it have to serve every shard; a
    sentence each. They do not count for ``healthy``.
    """
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


UNSEEN = ShardCounts(0, 0, 0, 0, None, None, 0, 0, 0, {}, {})


def shard_stats(keys: ShardKeys, seen: ShardCounts | ShardqError, node: str, report: PollerReport | None) -> ShardStats:
    counts = UNSEEN if isinstance(seen, ShardqError) else seen
    return ShardStats(
        shard=keys.shard,
        node=node,
        error=f"{type(seen).__name__}: {seen}" if isinstance(seen, ShardqError) else None,
        scheduled=counts.scheduled,
        ready=sum(counts.ready.values()),
        leased=counts.leased,
        dead=counts.dead,
        dispatched=sum(counts.dispatched.values()),
        forwarded=counts.forwarded,
        reaped=counts.reaped,
        buried=counts.buried,
        ready_by_topic=counts.ready,
        dispatched_by_topic=counts.dispatched,
        head_age=None if counts.head_ms is None else counts.now_us / 1e6 - counts.head_ms / 1e3,
        late_ms=counts.late_ms,
        lateness=report.lateness if report else None,
        poller=report.state if report else "elsewhere",
        poller_error=report.error if report else None,
    )


def stats_of(
    cache: TopologyCache,
    shards: list[ShardStats],
    *,
    replication: Mapping[str, Replication],
    advised: Iterable[Advice],
    server: str,
    reports: Iterable[PollerReport],
    failing_routes: tuple[RouteFault, ...],
    schedules: Summary | None,
    scheduler: SchedulerReport | None,
    dispatchers: tuple[str, ...],
    processors: Iterable[Processor],
    connections: Mapping[str, ConnectionCounts],
    relays: tuple[RelayStats, ...],
    spool: SpoolStats | None,
    replay: ReplayStats | None,
) -> Stats:
    topology = cache.topology
    advised = list(advised)
    problems = (
        *_problems(shards, reports, failing_routes, processors, relays),
        *(scheduler.problems if scheduler else ()),
        *_overdue(schedules.overdue if schedules else ()),
        *(each.text for each in advised if each.lost),
        *(problems_of_spool(spool) if spool is not None else ()),
    )
    return Stats(
        name=cache.name,
        epoch=topology.epoch,
        server=server,
        warnings=tuple(each.text for each in advised if not each.lost),
        scheduled=sum(s.scheduled for s in shards),
        ready=sum(s.ready for s in shards),
        leased=sum(s.leased for s in shards),
        dead=sum(s.dead for s in shards),
        dispatched=sum(s.dispatched for s in shards),
        forwarded=sum(s.forwarded for s in shards),
        ready_by_topic=_added(s.ready_by_topic for s in shards),
        dispatched_by_topic=_added(s.dispatched_by_topic for s in shards),
        lateness=Lateness.total(s.lateness for s in shards if s.lateness),
        shards=shards,
        dispatchers=dispatchers,
        paused=topology.paused,
        limits=topology.limits,
        routes=topology.routes,
        failing_routes=failing_routes,
        schedules=None
        if schedules is None
        else ScheduleStats(count=schedules.count, paused=schedules.paused, pushed=scheduler.pushed if scheduler else 0),
        healthy=not problems,
        problems=problems,
        connections=connections,
        replication=replication,
        relays=relays,
        spool=spool,
        replay=replay,
    )


def _problems(
    shards: list[ShardStats],
    reports: Iterable[PollerReport],
    routes: Iterable[RouteFault],
    processors: Iterable[Processor],
    relays: Iterable[RelayStats],
) -> Iterator[str]:
    blind = [shard for shard in shards if shard.error]
    if blind:
        yield f"{_named(blind)} could not be seen, the totals are without: {blind[0].error}"
    unwell = [report for report in reports if not report.healthy]
    failing = [report for report in unwell if report.state == "failing"]
    if failing:
        yield f"{_named(failing)} can't be dispatched by this process: {failing[0].error}"
    stuck = [report for report in unwell if report.state != "failing"]
    if stuck:
        yield f"{_named(stuck)}: no step of this process's pollers for {max(r.idle_s for r in stuck):,.0f} s"
    for route in routes:
        yield f"topic {route.topic!r} can't be forwarded to the list {route.to!r} by this process: {route.error}"
    for processor in processors:
        for problem in processor.problems:
            yield f"a worker of this process: {problem}"
    for relay in relays:
        if relay.problem:
            yield f"an outbox relay of this process can't move rows of {relay.table}: {relay.problem}"
    late = [(shard.head_age, shard) for shard in shards if shard.head_age is not None and shard.head_age > OVERDUE_S]
    if late:
        late.sort(key=lambda each: -each[0])
        yield (
            f"{_named([shard for _, shard in late])}: tasks are overdue, by up to {late[0][0]:,.0f} s; either no "
            "dispatcher runs (`shardq run` starts one), or those that do can't keep up"
        )


def _overdue(schedules: Sequence[str]) -> Iterator[str]:
    if schedules:
        names = ", ".join(map(repr, schedules[:NAMED]))
        more = f" and {len(schedules) - NAMED} more" if len(schedules) > NAMED else ""
        yield (
            f"schedule{'' if len(schedules) == 1 else 's'} {names}{more}: occurrences are overdue, and nobody has "
            "pushed them; either no dispatcher runs (`shardq run` starts one), or none of them can compute it"
        )


def _named(some: Sequence[ShardStats | PollerReport]) -> str:
    numbers = ", ".join(str(each.shard) for each in some[:NAMED])
    more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    return f"shard{'' if len(some) == 1 else 's'} {numbers}{more}"


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)
