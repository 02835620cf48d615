"""The result of ``engine.stats()``. Each shard is read at another instant, so totals are no snapshot. Topics are
counted where the server counts by topic, else estimated from ids that are drawn at random.
"""

from __future__ import annotations

import datetime as dt
import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import msgspec

from shardq.core.calls.node_info import Replication
from shardq.core.calls.observe import DRAWN, Drawn, ShardCounts
from shardq.core.dispatcher import Lateness, PollerReport, RouteFault
from shardq.core.drivers.routing import ConnectionCounts
from shardq.core.fleet.lateness import OTHERS
from shardq.core.fleet.report import RouteStats
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import EngineSettings, Limit, Route, Topology
from shardq.core.model.checks import shown_instant
from shardq.core.operation import succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.engine.engine_wide import CountsByShard, Interval, Rates
from shardq.errors import ShardqError
from shardq.features.far.report import FarStats
from shardq.features.replay.journal import ReplayStats
from shardq.features.schedules.declaring import Summary
from shardq.features.schedules.scheduler import SchedulerReport
from shardq.relay.report import SpoolStats

NINETEEN_OF_TWENTY = 1.96
"""The error of an estimate is within so many standard deviations, nineteen times of twenty."""


class TopicStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one topic, over all shards.

    >>> for topic, seen in engine.stats().topics.items():
    ...     print(topic, seen.scheduled, "±", seen.estimated.get("scheduled", 0), seen.ready, seen.oldest_ready)
    """

    scheduled: int
    held: int
    """Tasks with a key that are due, and wait for their key."""
    retrying: int
    """The scheduled tasks with an attempt that failed: they wait for another one."""
    ready: int
    leased: int
    dead: int
    estimated: Mapping[Literal["scheduled", "held", "retrying", "leased", "dead"], int]
    """The counts that are estimates → by how many tasks they may be off, nineteen times of twenty: in a shard with many
    tasks in a state, only some ids are drawn to tell their topics. A topic with few tasks may show none.
    """
    dispatched: int
    """Moved to ready lists since the shards were opened. A task that was given back unbegun counts once."""
    died: int
    """Tasks that died since the shards came into use: counted when they die, whatever became of them since."""
    oldest_ready: float | None
    """Seconds that the oldest ready task has waited, at least: exact if it came into an empty ready list, as in a topic
    that nobody works on; in a busy list nearly what it is, with regular looks. None: no task is ready.
    """
    dispatched_per_s: float | None
    """Since a look of this engine a second or longer ago; None at the first."""
    taken_per_s: float | None
    """Tasks that left the ready list, for a consumer or a route; likewise."""
    paused: bool
    """True if its tasks are not given out."""
    paused_until: dt.datetime | None
    """The time at which that ends by itself."""
    limit: Limit | None
    route: Route | None
    """Where its payloads go; a URL without its secrets."""

    @property
    def keeps_back(self) -> bool:
        """True if its ready tasks are not for consumers now."""
        return self.paused or self.route is not None


def largest(topics: Mapping[str, TopicStats], most: int) -> dict[str, TopicStats]:
    """The topics with the most tasks, in their order, and the sum of the others under ``OTHERS``: what all have in a
    state is what these have.
    """
    if len(topics) <= most:
        return dict(topics)

    def tasks(topic: str) -> int:
        each = topics[topic]
        return each.scheduled + each.held + each.ready + each.leased + each.dead

    kept = set(heapq.nsmallest(most, topics, key=lambda topic: (-tasks(topic), -topics[topic].dispatched, topic)))
    others = [each for topic, each in topics.items() if topic not in kept]
    off = Counter[Drawn | Literal["retrying"]]()
    for each in others:
        off.update(each.estimated)
    known: dict[str, list[float]] = {
        name: [value for each in others if (value := getattr(each, name)) is not None]
        for name in ("oldest_ready", "dispatched_per_s", "taken_per_s")
    }
    rest = TopicStats(
        **{name: sum(getattr(each, name) for each in others) for name in _SUMS},
        estimated=dict(off),
        oldest_ready=max(known["oldest_ready"], default=None),
        dispatched_per_s=sum(known["dispatched_per_s"]) if known["dispatched_per_s"] else None,
        taken_per_s=sum(known["taken_per_s"]) if known["taken_per_s"] else None,
        paused=False,
        paused_until=None,
        limit=None,
        route=None,
    )
    return {topic: each for topic, each in topics.items() if topic in kept} | {OTHERS: rest}


_SUMS = ("scheduled", "held", "retrying", "ready", "leased", "dead", "dispatched", "died")


def topics_of(counts: Iterable[ShardCounts], topology: Topology, interval: Interval | None) -> dict[str, TopicStats]:
    """Adds up the topics of all shards that were seen, and what is set for them; sorted by name."""
    ready, dispatched, died = Counter[str](), Counter[str](), Counter[str]()
    waited: dict[str, int] = {}
    by_state = {state: _Estimate() for state in (*DRAWN, _RETRYING)}
    for shard in counts:
        ready.update(shard.ready)
        dispatched.update(shard.dispatched)
        died.update(shard.died)
        for topic, ms in shard.waited_ms.items():
            waited[topic] = max(ms, waited.get(topic, 0))
        for state in DRAWN:
            by_state[state].add(shard.drawn[state], getattr(shard, state))
        by_state[_RETRYING].add(shard.retrying, shard.entries)
    counted = {state: each.rounded() for state, each in by_state.items()}
    names = {*ready, *dispatched, *topology.topics}
    return {
        topic: TopicStats(
            scheduled=counted["scheduled"][topic],
            held=counted["held"][topic],
            retrying=counted[_RETRYING][topic],
            ready=ready[topic],
            leased=counted["leased"][topic],
            dead=counted["dead"][topic],
            estimated={state: each.error(topic) for state, each in by_state.items() if each.unseen},
            dispatched=dispatched[topic],
            died=died[topic],
            oldest_ready=waited[topic] / 1000 if topic in waited else None,
            dispatched_per_s=interval.dispatched.get(topic, 0.0) if interval else None,
            taken_per_s=interval.taken.get(topic, 0.0) if interval else None,
            paused=topic in topology.paused,
            paused_until=shown_instant(ends) if (ends := topology.pauses.get(topic)) else None,
            limit=topology.settings_of(topic).limit,
            route=route.masked if (route := topology.routes.get(topic)) else None,
        )
        for topic in sorted(names)
    }


_RETRYING: Literal["retrying"] = "retrying"


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

    def rounded(self) -> Counter[str]:
        """The counts as whole numbers, whose sum is that of all tasks."""
        found = Counter({topic: int(count) for topic, count in self.counts.items()})
        left = round(sum(self.counts.values())) - found.total()
        nearest = sorted(self.counts, key=lambda topic: (found[topic] - self.counts[topic], topic))
        found.update(nearest[:left])
        return found

    def error(self, topic: str) -> int:
        """The number of tasks by which the count of the topic may be off."""
        return math.ceil(NINETEEN_OF_TWENTY * math.sqrt(self.unseen + self._more.get(topic, 0.0)))


def _variance(count: int, sample: int, found: int) -> float:
    """The variance of the estimate for a topic of which ``found`` were in a sample without repetition. It assumes one
    more found, and one more not: a topic of which none was found may have some tasks.
    """
    part = (found + 1) / (sample + 2)
    return count * count * part * (1 - part) / max(1, sample) * (1 - sample / count)


class ShardStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one shard.

    >>> for shard in engine.stats().shards:
    ...     print(shard.shard, shard.node, shard.scheduled, shard.poller, shard.error)
    """

    shard: int
    node: str
    error: str | None = None
    """The reason why it could not be read, in which case each of its counts is None; None if it was."""
    scheduled: int | None = None
    held: int | None = None
    ready: int | None = None
    leased: int | None = None
    dead: int | None = None
    dispatched: int | None = None
    """Moved to ready lists since the shard was opened."""
    forwarded: int | None = None
    reaped: int | None = None
    """Leases that ran out and whose task went back to its ready list."""
    buried: int | None = None
    """Leases that ran out once too often."""
    ready_by_topic: Mapping[str, int] = {}
    dispatched_by_topic: Mapping[str, int] = {}
    dispatched_per_s: float | None = None
    """Since a look of this engine a second or longer ago; None at the first."""
    head_age: float | None = None
    """Seconds since the first scheduled task was due: negative while it is still to come; None without one."""
    late_ms: int | None = None
    """Lateness of the task without a key that was dispatched last."""
    lateness: Lateness | None = None
    """The lateness of tasks without a key that this process's poller dispatched; None when the shard is served
    elsewhere.
    """
    poller: Literal["starting", "running", "failing", "stopped", "elsewhere"] = "elsewhere"
    """The state of this process's poller; ``elsewhere``: another process serves the shard, or none."""
    poller_error: str | None = None
    poller_idle: float | None = None
    """Seconds since this process's poller completed a step; None when the shard is served elsewhere."""


class RelayStats(msgspec.Struct, frozen=True, kw_only=True):
    """The counters of an outbox relay, since it was made.

    >>> for relay in engine.stats().relays:
    ...     print(relay.table, relay.moved, relay.failed, relay.oldest_s, relay.problem)
    """

    table: str
    moved: int
    """Rows that were pushed and confirmed, and are removed, or marked."""
    sent: int
    """Rows in the table that were sent, and are not confirmed yet by the servers' replicas and disks."""
    refused: int
    """Moved rows whose id was taken, with ``on_conflict="reject"``."""
    retried: int
    """Rows that a step could not move: they stay, and are tried again."""
    failed: int
    """Rows in the table that were refused too often, and are kept until an operator retries or drops them."""
    oldest_s: float
    """How far the relay is behind: the seconds that the oldest row had waited when the last step read it, by this
    machine's clock; 0 if none waited.
    """
    missing: str
    """Which shards came back older than the outbox, since when rows may be missing there, and what to do; empty if none
    did.
    """
    problem: str
    """The reason why rows wait, with the first row, its id and the shards; empty while rows are moved."""
    unconfirmed: str
    """The reason why rows leave the table as soon as a server has answered: its user may not ask what replicas have.
    Empty if it may.
    """


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
    """The names of schedules with occurrences that are due, and that no dispatcher has pushed."""
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
    ends_since: dt.datetime | None
    """All ends since then are kept, except those of topics that keep theirs for a shorter time; None without any."""
    server: str
    missing: tuple[int, ...]
    """The shards that could not be read."""
    is_blind: bool
    """True if no shard could be read, so that every total is 0 and says nothing."""
    scheduled: int
    held: int
    """Tasks with a key that are due, and wait for their key."""
    retrying: int
    """The scheduled tasks that wait for another attempt: the sum over ``topics``."""
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
    """Name → topic, for every topic that has a task, had one in the last days, or for which something is set. A topic
    that is not listed any more still counts in the totals.
    """
    rates: Rates | None
    """The tasks of a second since a look of this engine a second or longer ago; None at the first."""
    head_age: float | None
    """Seconds since the first scheduled task of all shards was due: negative while it is still to come; None without
    one.
    """
    lateness: Lateness
    """The lateness of tasks without a key that the pollers of this process dispatched."""
    shards: list[ShardStats]
    """Each shard; empty with ``stats(shards=False)``."""
    dispatchers: tuple[str, ...]
    """The processes with pollers, as this process last heard; empty when it has none."""
    failing_routes: tuple[RouteFault, ...]
    """Routes that this process can't serve now: topic, list, reason, shards."""
    sinks: tuple[RouteStats, ...]
    """The topics that this process forwards to URLs. ``fleet()`` has those of all processes."""
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
    far: FarStats | None = None
    """The tasks that wait in the table of ``far=``; None for an engine without one."""
    replay: ReplayStats | None
    """The memory and the replays of this engine after failovers; None without ``replay=``."""

    @property
    def is_retrying_estimated(self) -> bool:
        """True if ``retrying`` is an estimate."""
        return any(_RETRYING in topic.estimated for topic in self.topics.values())

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
    ends_since: dt.datetime | None
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
    sinks: tuple[RouteStats, ...] = ()
    scheduler: SchedulerReport | None = None
    far: FarStats | None = None
    dispatchers: tuple[str, ...] = ()


_COUNTS = ("scheduled", "held", "leased", "dead", "forwarded", "reaped", "buried", "head_age", "late_ms")
"""The counts of a shard that its stats have as they are."""


def _shard(
    keys: ShardKeys, node: str, counts: ShardCounts | ShardqError, poller: PollerReport | None, rates: Interval | None
) -> ShardStats:
    if isinstance(counts, ShardqError):
        seen: dict[str, Any] = {"error": f"{type(counts).__name__}: {counts}"}
    else:
        seen = {name: getattr(counts, name) for name in _COUNTS}
        seen |= {"ready": sum(counts.ready.values()), "ready_by_topic": counts.ready}
        seen |= {"dispatched": _dispatched(counts), "dispatched_by_topic": counts.dispatched}
    if poller is not None:
        seen |= {"lateness": poller.lateness, "poller": poller.state}
        seen |= {"poller_error": poller.error, "poller_idle": poller.idle_s}
    per_s = rates.dispatched_of_shard.get(keys.shard) if rates else None
    return ShardStats(shard=keys.shard, node=node, dispatched_per_s=per_s, **seen)


def _dispatched(counts: ShardCounts) -> int:
    return sum(counts.dispatched.values()) + counts.dispatched_retired


def stats_of(cache: TopologyCache, seen: Seen, here: Here, interval: Interval | None, *, shards: bool) -> Stats:
    """``shards``: False leaves the list of shards empty."""
    rows = [
        _shard(keys, seen.nodes[keys.slot], found, here.reports.get(keys.shard), interval)
        for keys, found in seen.counts
    ]
    counted = succeeded(seen.counts).values()
    topics = topics_of(counted, cache.topology, interval)
    schedules = None
    if (summary := seen.schedules) is not None:
        pushed = here.scheduler.pushed if here.scheduler else 0
        schedules = ScheduleStats(pushed=pushed, **asdict(summary))
    return Stats(
        name=cache.name,
        epoch=cache.topology.epoch,
        settings=cache.topology.settings,
        ends_since=seen.ends_since,
        server=seen.server,
        missing=tuple(keys.shard for keys, counts in seen.counts if isinstance(counts, ShardqError)),
        is_blind=not counted,
        scheduled=sum(counts.scheduled for counts in counted),
        held=sum(counts.held for counts in counted),
        retrying=sum(topic.retrying for topic in topics.values()),
        ready=sum(sum(counts.ready.values()) for counts in counted),
        leased=sum(counts.leased for counts in counted),
        dead=sum(counts.dead for counts in counted),
        dispatched=sum(map(_dispatched, counted)),
        forwarded=sum(counts.forwarded for counts in counted),
        died=sum(sum(counts.died.values()) + counts.died_retired for counts in counted),
        died_lately=sum(counts.died_lately for counts in counted),
        trimmed=sum(counts.trimmed for counts in counted),
        trimmed_age=min(
            (max(0.0, c.now_us / 1e6 - c.trimmed_ms / 1e3) for c in counted if c.trimmed_ms is not None), default=None
        ),
        topics=topics,
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
        far=here.far,
        replay=here.replay,
    )
