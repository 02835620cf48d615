"""The cheap looks at counts, processes and this process, and what ``health()`` makes of all findings: the verdict."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import msgspec

from shardq.core.calls import listing, observe
from shardq.core.dispatcher.poller import STUCK_S
from shardq.core.fleet.lateness import MAX_LATE_S as MAX_LATE_S
from shardq.core.fleet.member import (
    Member,
    dispatchers,
    fleet,
    is_told,
    knows,
    serves,
    unforwarded,
    unserved,
    workers,
)
from shardq.core.fleet.report import together
from shardq.core.layout.destinations import named as to_named
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Route
from shardq.core.model.ids import quoted_topic, topic_of
from shardq.core.model.printable import counted, quoted
from shardq.core.operation import Many, Operation, Pause, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_every_shard
from shardq.core.topology_upkeep import find_strays, refresh
from shardq.engine.engine_wide import CountsByShard
from shardq.engine.findings import SEVERITIES, TABLE, Finding, found, listed, named, reds
from shardq.engine.servers import replicas_behind
from shardq.engine.stats import ShardStats, Stats, TopicStats
from shardq.errors import InvalidOption, ShardqError
from shardq.features.far.report import LATE_S, FarStats
from shardq.features.listing.query import cause_of
from shardq.relay.report import SpoolStats

MAX_READY_AGE_S = 60.0
"""A ready task that no worker takes for longer than this is a reason: no worker serves its topic, or too few do."""

MAX_DEAD = 100
"""More tasks than that which died in the last ten minutes are a reason. A task dies when all its attempts have failed,
25 over some seven hours by default, or its handler gave it up: one in six seconds is a fault of a handler or of what it
needs, not of single tasks, however many are handled.
"""

MOST_OWN_FAR = 100_000
"""So many far tasks in Redis of an engine with a far store are told: they take 20 MB there for weeks."""

LATELY_S = 600.0
"""The time for which deaths, and removals of dead tasks, are a reason."""

MAX_ROUTES = 0.1
"""The share of the forwarded topics that may fail before that is a reason: one customer's dead endpoint is a warning,
and not the engine's illness.
"""

SAMPLED = 200
"""The deaths that are looked at for the commonest cause."""

AGAIN_S = 1.5
"""Longer than a heartbeat's interval, with which dispatchers hear of each other."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on an engine; true if all is well.

    >>> health = engine.health(max_late=5.0, max_ready_age=60.0)
    >>> if not health:
    ...     print(health.ok, health.reasons)
    """

    findings: list[Finding]
    """All that was found, the worst first: three of a name at most, and how many more there are."""
    stats: Stats
    """The look that was judged."""
    fleet: list[Member]
    """The processes that were judged, as ``engine.fleet()`` returns them; empty if they could not be read."""

    def __bool__(self) -> bool:
        return self.ok

    @property
    def ok(self) -> bool:
        """True if no finding is red."""
        return not reds(self.findings)

    @property
    def reasons(self) -> list[str]:
        """A sentence for each red finding, with what to do: what is late, lost or refused by now."""
        return list(map(str, reds(self.findings)))

    @property
    def warnings(self) -> list[str]:
        """A sentence for each warning: settings of the servers that can lose tasks, what is done without or late as an
        ACL, a proxy or a server forbids it, limits that are too low for the pollers of this process.
        """
        return [str(finding) for finding in self.findings if finding.severity == "warning"]

    @property
    def severity(self) -> Literal["ok", "route", "engine"]:
        """``engine`` if the engine is ill, ``route`` if only the topics of some routes are."""
        checks = {TABLE[finding.name].check for finding in reds(self.findings)}
        return "ok" if not checks else "route" if checks == {"routes"} else "engine"


def check_bounds(max_late: float, max_ready_age: float, max_dead: int) -> None:
    for option, seconds in (("max_late", max_late), ("max_ready_age", max_ready_age)):
        if isinstance(seconds, bool) or not (isinstance(seconds, int | float) and 0 < seconds <= 1e9):
            raise InvalidOption(f"{option}={quoted(seconds)} is not possible; give seconds, more than 0")
    if isinstance(max_dead, bool) or not isinstance(max_dead, int) or max_dead < 0:
        raise InvalidOption(f"max_dead={quoted(max_dead)} is not possible; give an int from 0")


@dataclass(frozen=True, slots=True)
class Examined:
    """What looks have found at the servers, beside the counts."""

    findings: list[Finding]
    fleet: list[Member] | None
    """The processes that live; None if they could not be read."""
    deaths: Sequence[tuple[str, str]] = ()
    """Topic and reason of the last tasks that died, where too many did."""


class _Unserved(NamedTuple):
    shards: list[int]
    routes: dict[str, Route]
    """Topic → the route to a URL that no dispatcher says it serves."""
    fleet: list[Member]


def find_deaths(counts_by_shard: CountsByShard, max_dead: int) -> Operation[list[tuple[str, str]]]:
    """Reads topic and reason of the last tasks that died, if more than ``max_dead`` did lately."""
    died = {keys: count for keys, seen in succeeded(counts_by_shard).items() if (count := seen.died_lately)}
    if sum(died.values()) <= max_dead:
        return []
    most = -(-SAMPLED // len(died))
    answers = yield Many({keys: observe.newest_dead(keys, min(most, count)) for keys, count in died.items()})
    ids: dict[ShardKeys, list[str]] = {keys: dead for keys, dead in succeeded(answers).items() if dead}
    reasons = succeeded((yield Many({keys: observe.reasons_of(keys, dead) for keys, dead in ids.items()})))
    return [
        (topic_of(id), reason) for keys, told in reasons.items() for id, reason in zip(ids[keys], told, strict=True)
    ]


def find_unserved(cache: TopologyCache, forwarded: Collection[str]) -> Operation[tuple[list[Finding], list[Member]]]:
    """Finds the shards and routes that no process serves, and returns the processes, too. They change hands when a
    dispatcher comes or goes: only what two looks found counts, with some time between them. ``forwarded``: the topics
    that this process forwards to sinks.
    """
    shards, routes, members = yield from _unserved_now(cache, forwarded)
    if (shards or routes) and dispatchers(members):
        yield Pause(AGAIN_S)
        again = yield from _unserved_now(cache, forwarded)
        shards, members = sorted(set(shards) & set(again.shards)), again.fleet
        routes = {topic: route for topic, route in again.routes.items() if routes.get(topic) == route}
    alive = len(dispatchers(members))
    told = [] if alive else [found("no_dispatcher")]
    if alive and shards:
        told.append(found("unserved_shards", shards=named(shards), alive=alive))
    told += (
        found("unserved_route", about=topic, topic=quoted_topic(topic), to=route.named)
        for topic, route in routes.items()
    )
    return told, members


def find_own_far(cache: TopologyCache, far_ms: int) -> Operation[list[Finding]]:
    """Finds far tasks that an engine with a far store has in Redis: those with ids of the callers' own."""
    begin_ms = math.ceil(time.time() * 1000)
    make = partial(listing.forecast, begin_ms=begin_ms, step_ms=far_ms, steps=1)
    counts = succeeded((yield from call_every_shard(cache, make)))
    tasks = sum(each.later for each in counts.values())
    return [found("far_own_ids", tasks=tasks, seconds=far_ms / 1000)] if tasks >= MOST_OWN_FAR else []


def find_out_of_use(cache: TopologyCache) -> Operation[list[Finding]]:
    """Finds the shards out of use that hold tasks. This process may know an old topology, and a resize may just end:
    only what two looks found counts.
    """
    strays = yield from find_strays(cache)
    if strays:
        try:
            yield from refresh(cache)
        except ShardqError:
            return []  # the shards of another engine, or of one that can't be seen
        yield Pause(AGAIN_S)
        strays = [keys for keys in (yield from find_strays(cache)) if keys in strays]
    return [found("strays", shards=named([keys.shard for keys in strays]))] if strays else []


def _unserved_now(cache: TopologyCache, forwarded: Collection[str]) -> Operation[_Unserved]:
    members = yield from fleet(cache.control)
    topology = cache.topology
    routes = {
        topic: route
        for topic, route in topology.routes.items()
        if topic not in topology.paused and topic not in forwarded
    }
    return _Unserved(
        unserved(members, (keys.shard for keys in cache.span())),
        {topic: routes[topic] for topic in unforwarded(members, routes)},
        members,
    )


@dataclass(frozen=True, slots=True)
class Bounds:
    """From when on something is a reason, as ``health()`` was asked."""

    late_s: float = MAX_LATE_S
    ready_age_s: float = MAX_READY_AGE_S
    dead: int = MAX_DEAD


def judge(
    stats: Stats,
    examined: Examined,
    bounds: Bounds,
    *,
    own: Iterable[Finding],
    ours: Collection[str],
    has_far: bool,
) -> list[Finding]:
    """All findings of a look. ``own``: those on parts of this process. ``ours``: the names under which these report.
    ``has_far``: the engine has tasks in a far store.
    """
    members = examined.fleet or []
    others = [member for member in members if member.name not in ours]
    deaf = {each.about for each in examined.findings if each.name == "deaf"}
    told = [
        *examined.findings,
        *own,
        *replicas_behind(stats.replication),
        *_of_shards(stats.shards, bounds.late_s),
        *_of_relays(stats),
        *_routes(stats, others),
        *_stuck(members),
        *_not_healthy(others),
        *_unknown(members),
        *_untaken(stats, examined.fleet, bounds.ready_age_s, deaf),
        *_deaths(stats, examined.deaths, bounds.dead),
        *_schedules(stats),
        *(of_spool(stats.spool) if stats.spool is not None else ()),
        *(_of_far(stats, members, others) if has_far else ()),
    ]
    failing = sum(each.name == "route" for each in told)
    if failing <= MAX_ROUTES * sum(topic.route is not None for topic in stats.topics.values()):
        told = [msgspec.structs.replace(each, severity="warning") if each.name == "route" else each for each in told]
    return told


def with_findings(health: Health, more: Iterable[Finding]) -> Health:
    """The verdict with more findings."""
    findings = sorted([*health.findings, *more], key=lambda each: SEVERITIES.index(each.severity))
    return msgspec.structs.replace(health, findings=findings)


def of_spool(spool: SpoolStats) -> Iterator[Finding]:
    """The findings on a spool that can't be replayed."""
    if spool.fault:
        yield found("spool_broken", about=spool.path, fault=spool.fault)
    if spool.problem and spool.waiting is not None:
        oldest = f", the oldest for {spool.oldest:,.0f} s" if spool.oldest is not None else ""
        yield found(
            "spool_waits",
            about=spool.path,
            waiting=spool.waiting,
            path=spool.path,
            oldest=oldest,
            problem=spool.problem,
        )
    if spool.failed:
        yield found("spool_refused", about=spool.path, failed=spool.failed, path=spool.path)


def of_far(far: FarStats) -> Iterator[Finding]:
    """The findings on a far store: this process can't load from it, or no process does."""
    yield from (found("far", by="", problem=problem) for problem in far.problems)
    late = far.first is not None and (dt.datetime.now(dt.UTC) - far.first).total_seconds() > LATE_S
    if late and not far.problems:
        yield found("far_late", first=far.first, database=far.database)


def _of_far(stats: Stats, members: Sequence[Member], others: Iterable[Member]) -> Iterator[Finding]:
    """The reasons why far tasks can't be loaded."""
    if stats.far is not None:
        yield from of_far(stats.far)
    for member in dispatchers(others):
        for problem in member.problems:
            yield found("far", about=member.name, by=f"the dispatcher {member.host}:{member.pid}: ", problem=problem)
    lacking = [f"{member.host}:{member.pid}" for member in dispatchers(members) if member.host and not member.loads]
    if lacking:
        which = f"the dispatcher{'s' if len(lacking) > 1 else ''} {listed(lacking)}"
        yield found("far_unloaded", dispatchers=which)
    places: dict[str, list[str]] = {}
    for member in dispatchers(members):
        if member.loads_from:
            places.setdefault(member.loads_from, []).append(f"{member.host}:{member.pid}")
    if len(places) > 1:
        yield found("far_copies", dispatchers=", and ".join(map(listed, places.values())))


def _of_shards(shards: Sequence[ShardStats], max_late_s: float) -> Iterator[Finding]:
    """Shards that can't be seen, that this process can't dispatch, or where tasks are overdue."""
    if blind := [shard for shard in shards if shard.error]:
        yield found("unseen_shards", shards=named([each.shard for each in blind]), error=blind[0].error)
    if failing := [shard for shard in shards if shard.poller == "failing"]:
        error = failing[0].poller_error
        yield found("failing_poller", shards=named([each.shard for each in failing]), error=error)
    idle_s = {each.shard: each.poller_idle for each in shards if each.poller != "failing"}
    if stuck := {shard: idle for shard, idle in idle_s.items() if idle is not None and idle >= STUCK_S}:
        yield found("stuck_poller", shards=named(list(stuck)), seconds=max(stuck.values()))
    if late := {each.shard: age for each in shards if (age := each.head_age) is not None and age > max_late_s}:
        worst_first = sorted(late, key=late.__getitem__, reverse=True)
        yield found("overdue", shards=named(worst_first), seconds=late[worst_first[0]])


def _of_relays(stats: Stats) -> Iterator[Finding]:
    for relay in stats.relays:
        for name, problem in (
            ("outbox_stuck", relay.problem),
            ("outbox_unconfirmed", relay.unconfirmed),
            ("outbox_missing", relay.missing),
        ):
            if problem:
                yield found(name, about=relay.table, table=relay.table, problem=problem)
        if relay.failed:
            yield found("outbox_put_aside", about=relay.table, table=relay.table, failed=relay.failed)


def _routes(stats: Stats, others: Iterable[Member]) -> Iterator[Finding]:
    """The routes that this process can't serve, and the circuits of others, as they report them."""
    failing = {route.topic: (route.to, " by this process", route.error) for route in stats.failing_routes}
    for sink in together(sink for member in others for sink in member.sinks):
        topic = stats.topics.get(sink.topic)
        # a report may be older than the route
        forwarded = topic is not None and topic.route is not None and not topic.route.is_here and not topic.paused
        if sink.circuit != "closed" and forwarded:
            failing.setdefault(sink.topic, (sink.to, ", and its tasks wait", sink.error))
    for name, (to, by, error) in failing.items():
        yield found("route", about=name, topic=quoted_topic(name), to=to_named(to), by=by, error=error)


def _untaken(
    stats: Stats, members: Sequence[Member] | None, max_age_s: float, deaf: Collection[str]
) -> Iterator[Finding]:
    """Topics whose ready tasks wait for too long, by what they wait for. ``members``: None if they could not be read.
    ``deaf``: the topics of which nobody is woken.
    """
    told = {route.topic for route in stats.failing_routes} | {*deaf}
    old = {
        topic: age
        for topic, seen in stats.topics.items()
        if (age := seen.oldest_ready) is not None and age > max_age_s and not seen.paused and topic not in told
    }
    for topic in sorted(old, key=old.__getitem__, reverse=True):
        seen = stats.topics[topic]
        name, values = _why_untaken(topic, seen, members)
        ready = counted(seen.ready, "ready task")
        yield found(name, about=topic, topic=quoted_topic(topic), ready=ready, seconds=old[topic], **values)


def _why_untaken(topic: str, seen: TopicStats, members: Sequence[Member] | None) -> tuple[str, Mapping[str, Any]]:
    limit, taken = seen.limit, seen.taken_per_s
    if seen.route is not None:
        if limit is not None and limit.rate is not None:
            return "limit", {"limit": f"{limit.rate:g} a second", "to": f" to {seen.route.named}"}
        return "slow_route", {"to": seen.route.named}
    serving = [worker for worker in workers(members or ()) if serves(worker, topic)]
    if members is not None and is_told(workers(members)) and not serving and not seen.leased and not taken:
        return "no_worker", {}
    if limit is not None and limit.concurrency is not None and seen.leased >= limit.concurrency:
        return "limit", {"limit": f"{limit.concurrency:,} at once", "to": ""}
    if limit is not None and limit.rate is not None and (taken is None or taken > limit.rate / 2):
        return "limit", {"limit": f"{limit.rate:g} a second", "to": ""}
    if serving and all(worker.concurrency and worker.running >= worker.concurrency for worker in serving):
        longest = sorted((task for worker in serving for task in worker.longest), key=lambda task: -task.seconds)
        if longest:
            ((holder, _),) = Counter(task.topic for task in longest).most_common(1)
            places = sum(worker.concurrency for worker in serving)
            task, running = longest[0].id, longest[0].seconds
            return "held_places", {"holder": quoted_topic(holder), "places": places, "task": task, "running": running}
    they = f"the {len(serving):,} workers that serve the topic"
    return "backlog", {"workers": they if serving else "either no worker serves the topic, or those that do"}


def _not_healthy(others: Iterable[Member]) -> Iterator[Finding]:
    """The problems of workers of other processes, as they report them."""
    for worker in workers(others):
        for problem in worker.problems:
            yield found("worker", about=worker.name, worker=_place(worker), problem=problem)


def _place(worker: Member) -> str:
    return f"the worker {worker.host}:{worker.pid}"


def _stuck(members: Iterable[Member]) -> Iterator[Finding]:
    """Workers whose every handler hangs."""
    for worker in workers(members):
        if worker.concurrency and worker.stuck >= worker.concurrency:
            longest = max(worker.longest, key=lambda task: task.seconds, default=None)
            which = f", task {longest.id} for {longest.seconds:,.0f} s" if longest is not None else ""
            yield found(
                "stuck_worker",
                about=worker.name,
                worker=_place(worker),
                concurrency=worker.concurrency,
                longest=which,
            )


def _unknown(members: Sequence[Member]) -> Iterator[Finding]:
    """Calls of named tasks that no worker knows."""
    calls: dict[tuple[str, str], tuple[int, float]] = {}
    for worker in workers(members):
        for call in worker.unknown:
            if not any(knows(other, call.topic, call.task) for other in workers(members)):
                count, seconds = calls.get((call.topic, call.task), (0, 0.0))
                calls[call.topic, call.task] = count + call.count, max(seconds, call.seconds)
    for (topic, task), (count, seconds) in sorted(calls.items(), key=lambda each: -each[1][0]):
        what = f"calls of {task!r}" if task else "payloads that name no function"
        about = f"{topic}/{task}"
        yield found("unknown_task", about=about, topic=quoted_topic(topic), what=what, count=count, seconds=seconds)


def _deaths(stats: Stats, sample: Sequence[tuple[str, str]], max_dead: int) -> Iterator[Finding]:
    if stats.died_lately > max_dead:
        tasks, commonest = "1 task has" if stats.died_lately == 1 else f"{stats.died_lately:,} tasks have", ""
        if sample:
            ((topic, cause), count) = Counter((topic, cause_of(reason)) for topic, reason in sample).most_common(1)[0]
            commonest = f"; {count:,} of the last {len(sample):,} of topic {quoted_topic(topic)}, by {cause}"
        yield found("deaths", tasks=tasks, minutes=LATELY_S / 60, commonest=commonest)
    if stats.trimmed_age is not None and stats.trimmed_age < LATELY_S:
        yield found("trimmed", seconds=stats.trimmed_age, trimmed=stats.trimmed)


def _schedules(stats: Stats) -> Iterator[Finding]:
    if (seen := stats.schedules) is None:
        return
    for name, concerned in (("overdue_schedule", seen.overdue), ("unread_schedule", seen.unreadable)):
        if concerned:
            yield found(name, schedules=f"schedule{'' if len(concerned) == 1 else 's'} {listed(map(repr, concerned))}")
