"""The judgement of an engine: is all well, and if not, why? ``health()`` makes it. Every sentence on what is wrong with
an engine as a whole is built here, those on servers in ``advice`` and ``servers``.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import msgspec

from shardq.core.calls import observe
from shardq.core.dispatcher.poller import STUCK_S
from shardq.core.fleet.lateness import MAX_LATE_S as MAX_LATE_S
from shardq.core.fleet.member import (
    NO_DISPATCHER,
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
from shardq.core.topology_upkeep import find_strays, refresh
from shardq.engine.advice import NAMED, Advice, Check, named, replicas_behind
from shardq.engine.deaf import Deaf
from shardq.engine.engine_wide import CountsByShard
from shardq.engine.stats import ShardStats, Stats, TopicStats
from shardq.engine.topic_keys import StuckKey
from shardq.errors import InvalidOption, ShardqError
from shardq.features.cold.report import problems as problems_of_cold
from shardq.features.listing.query import cause_of
from shardq.features.spool.commands import SpoolStats
from shardq.features.spool.commands import problems as problems_of_spool

MAX_READY_AGE_S = 60.0
"""A ready task that no worker takes for longer than this is a reason: no worker serves its topic, or too few do."""

MAX_DEAD = 100
"""More tasks than that which died in the last ten minutes are a reason. A task dies when all its attempts have failed,
25 over some seven hours by default, or its handler gave it up: one in six seconds is a fault of a handler or of what it
needs, not of single tasks, however many are handled.
"""

LATELY_S = 600.0
"""The time for which deaths, and removals of dead tasks, are a reason."""

MAX_ROUTES = 0.1
"""The share of the forwarded topics that may fail before that is a reason: one customer's dead endpoint is a warning,
and not the engine's illness.
"""

EXAMPLES = 3
"""Reasons of one kind that are told; of the rest only the number is."""

SAMPLED = 200
"""The deaths that are looked at for the commonest cause."""

AGAIN_S = 1.5
"""Longer than a heartbeat's interval, with which dispatchers hear of each other."""


Kind = (
    Literal[
        "unseen_shards",
        "no_dispatcher",
        "unserved_shards",
        "strays",
        "poller",
        "route",
        "outbox",
        "worker",
        "unserved_route",
        "overdue",
        "no_worker",
        "backlog",
        "limit",
        "deaf",
        "unknown_task",
        "stuck_worker",
        "stuck_key",
        "deaths",
        "trimmed",
        "schedule",
        "spool",
        "cold",
    ]
    | Check
)
"""The kind of a reason: a name that stays, for metrics and programs; the sentences may change."""

OF_ROUTES: Collection[Kind] = ("route", "unserved_route")
"""The kinds that concern the topics of one route each, and not the engine."""

KINDS: tuple[Kind, ...] = tuple(kind for names in get_args(Kind) for kind in get_args(names))


class Reason(NamedTuple):
    """One thing that is wrong."""

    kind: Kind
    text: str
    """A sentence."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on an engine; true if all is well.

    >>> health = engine.health(max_late=5.0, max_ready_age=60.0)
    >>> if not health:
    ...     print(health.ok, health.reasons)
    """

    ok: bool
    """True if there are no reasons against it."""
    reasons: list[str]
    """A sentence for each thing that is wrong: shards that could not be seen, or that no dispatcher serves; pollers,
    routes, schedulers, workers and outbox relays of this process that fail or stand still; sinks that are down for any
    process; tasks that are overdue, that no worker takes or knows, or that die; schedules that are overdue; servers
    that evict, are full, or failed; replicas that are behind; clocks that differ; a spool that can't be replayed.
    """
    kinds: list[Kind]
    """The kind of each reason, a name that stays: the same as in the metric ``shardq_unhealthy``."""
    warnings: list[str]
    """Settings of the servers that can lose tasks, what is done without or late because an ACL, a proxy or a server
    forbids it, and limits that are too low for the pollers of this process, should it have to serve every shard; a
    sentence each. They are no reasons.
    """
    stats: Stats
    """The look that was judged."""
    fleet: list[Member]
    """The processes that were judged, as ``engine.fleet()`` returns them; empty if they could not be read."""

    def __bool__(self) -> bool:
        return self.ok

    @property
    def severity(self) -> Literal["ok", "route", "engine"]:
        """``engine`` if the engine is ill, ``route`` if only the topics of some routes are."""
        if self.ok:
            return "ok"
        return "route" if all(kind in OF_ROUTES for kind in self.kinds) else "engine"


def check_bounds(max_late: float, max_ready_age: float, max_dead: int) -> None:
    for option, seconds in (("max_late", max_late), ("max_ready_age", max_ready_age)):
        if isinstance(seconds, bool) or not (isinstance(seconds, int | float) and 0 < seconds <= 1e9):
            raise InvalidOption(f"{option}={quoted(seconds)} is not possible; give seconds, more than 0")
    if isinstance(max_dead, bool) or not isinstance(max_dead, int) or max_dead < 0:
        raise InvalidOption(f"max_dead={quoted(max_dead)} is not possible; give an int from 0")


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings of a look for health, beside the counts."""

    advised: list[Advice]
    unserved: Unserved | None
    """None if it can't be told."""
    deaths: Sequence[tuple[str, str]] = ()
    """Topic and reason of the last tasks that died, where too many did."""
    deaf: Sequence[Deaf] = ()
    stuck_keys: Sequence[StuckKey] = ()
    strays: Sequence[ShardKeys] = ()
    """The shards out of use that hold tasks."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """The shards that no dispatcher says it serves."""

    shards: list[int]
    routes: dict[str, Route]
    """Topic → the route to a URL that no dispatcher says it serves."""
    fleet: list[Member]
    """The processes that live."""

    @property
    def reasons(self) -> list[Reason]:
        found, alive = [], len(dispatchers(self.fleet))
        if not alive:
            found.append(Reason("no_dispatcher", NO_DISPATCHER))
        elif self.shards:
            text = (
                f"{named(self.shards)}: none of the {alive:,} dispatchers that live serves it; see their "
                "logs, and end one that hangs"
            )
            found.append(Reason("unserved_shards", text))
        for topic, route in self.routes.items():
            text = (
                f"topic {quoted_topic(topic)} is forwarded to {route.named}, but no running dispatcher serves it: see "
                "the logs of those that run, or start one (`shardq run`)"
            )
            found.append(Reason("unserved_route", text))
        return found


def find_deaths(counts_by_shard: CountsByShard, max_dead: int) -> Operation[list[tuple[str, str]]]:
    """Reads topic and reason of the last tasks that died, if more than ``max_dead`` did lately."""
    died = {keys: count for keys, seen in succeeded(counts_by_shard).items() if (count := seen.died_lately)}
    if sum(died.values()) <= max_dead:
        return []
    most = -(-SAMPLED // len(died))
    answers = yield Many({keys: observe.newest_dead(keys, min(most, count)) for keys, count in died.items()})
    ids: dict[ShardKeys, list[str]] = {keys: found for keys, found in succeeded(answers).items() if found}
    reasons = succeeded((yield Many({keys: observe.reasons_of(keys, found) for keys, found in ids.items()})))
    return [
        (topic_of(id), reason) for keys, told in reasons.items() for id, reason in zip(ids[keys], told, strict=True)
    ]


def find_unserved(cache: TopologyCache, forwarded: Collection[str]) -> Operation[Unserved]:
    """Finds the shards and routes that no process serves. They change hands when a dispatcher comes or goes: only what
    two looks found counts, with some time between them. ``forwarded``: the topics that this process forwards to sinks.
    """
    found = yield from _unserved_now(cache, forwarded)
    if (found.shards or found.routes) and dispatchers(found.fleet):
        yield Pause(AGAIN_S)
        again = yield from _unserved_now(cache, forwarded)
        shards = sorted(set(found.shards) & set(again.shards))
        routes = {topic: route for topic, route in again.routes.items() if found.routes.get(topic) == route}
        found = Unserved(shards, routes, again.fleet)
    return found


def find_out_of_use(cache: TopologyCache) -> Operation[list[ShardKeys]]:
    """Finds the shards out of use that hold tasks. This process may know an old topology, and a resize may just end:
    only what two looks found counts.
    """
    found = yield from find_strays(cache)
    if found:
        try:
            yield from refresh(cache)
        except ShardqError:
            return []  # the shards of another engine, or of one that can't be seen
        yield Pause(AGAIN_S)
        found = [keys for keys in (yield from find_strays(cache)) if keys in found]
    return found


def _unserved_now(cache: TopologyCache, forwarded: Collection[str]) -> Operation[Unserved]:
    members = yield from fleet(cache.control)
    topology = cache.topology
    routes = {
        topic: route
        for topic, route in topology.routes.items()
        if topic not in topology.paused and topic not in forwarded
    }
    return Unserved(
        unserved(members, (keys.shard for keys in cache.span())),
        {topic: routes[topic] for topic in unforwarded(members, routes)},
        members,
    )


def judge(
    stats: Stats,
    examined: Examined,
    *,
    max_late: float,
    max_ready_age: float,
    max_dead: int,
    own: Iterable[Reason],
    ours: Collection[str],
    is_cold: bool,
) -> Health:
    """``own``: what is wrong with parts of this process. ``ours``: the names under which these report. ``is_cold``: the
    engine has a cold store.
    """
    fleet = examined.unserved.fleet if examined.unserved is not None else []
    others = [member for member in fleet if member.name not in ours]
    advised = [*examined.advised, *replicas_behind(stats.replication)]
    reasons = [
        *_blind(stats.shards),
        *(examined.unserved.reasons if examined.unserved is not None else ()),
        *_strays(examined.strays),
        *_failing(stats),
        *_sinks_down(stats, others),
        *own,
        *_overdue(stats.shards, max_late),
        *_stuck(fleet),
        *_stuck_keys(examined.stuck_keys),
        *_not_healthy(others),
        *_unknown(fleet),
        *_deaf(examined.deaf),
        *_untaken(stats, fleet if examined.unserved is not None else None, max_ready_age, examined.deaf),
        *_deaths(stats, examined.deaths, max_dead),
        *_schedules(stats),
        *(Reason(each.check, each.text) for each in advised if each.problem),
        *(of_spool(stats.spool) if stats.spool is not None else ()),
        *(_cold(stats, fleet, others) if is_cold else ()),
    ]
    warnings = [each.text for each in advised if not each.problem]
    routes = [each for each in reasons if each.kind == "route"]
    if len(routes) <= MAX_ROUTES * sum(topic.route is not None for topic in stats.topics.values()):
        warnings += (each.text for each in _examples(routes))
        reasons = [each for each in reasons if each.kind != "route"]
    none = Health(ok=True, reasons=[], kinds=[], warnings=warnings, stats=stats, fleet=fleet)
    return with_reasons(none, _examples(reasons))


def _examples(reasons: Iterable[Reason]) -> Iterator[Reason]:
    """Some of each kind, and how many there are in all."""
    of_kind: dict[Kind, list[Reason]] = {}
    for reason in reasons:
        of_kind.setdefault(reason.kind, []).append(reason)
    for kind, some in of_kind.items():
        yield from some[:EXAMPLES]
        if len(some) > EXAMPLES:
            yield Reason(kind, f"{len(some) - EXAMPLES:,} more of this kind ({kind}), {len(some):,} in all")


def with_reasons(health: Health, reasons: Iterable[Reason]) -> Health:
    """The verdict with more reasons against it."""
    more = list(reasons)
    texts, kinds = [each.text for each in more], [each.kind for each in more]
    return msgspec.structs.replace(
        health, ok=health.ok and not more, reasons=[*health.reasons, *texts], kinds=[*health.kinds, *kinds]
    )


def of_spool(spool: SpoolStats) -> Iterator[Reason]:
    """The reasons of a spool that can't be replayed."""
    return (Reason("spool", text) for text in problems_of_spool(spool))


def _cold(stats: Stats, fleet: Sequence[Member], others: Iterable[Member]) -> Iterator[Reason]:
    """The reasons why far tasks can't be loaded."""
    if stats.cold is not None:
        yield from (Reason("cold", text) for text in problems_of_cold(stats.cold, dt.datetime.now(dt.UTC)))
    for member in others:
        if member.kind == "dispatcher":
            for problem in member.problems:
                yield Reason("cold", f"the dispatcher {member.host}:{member.pid}: {problem}")
    lacking = [f"{member.host}:{member.pid}" for member in dispatchers(fleet) if member.host and not member.loads]
    if lacking:
        which = f"the dispatcher{'s' if len(lacking) > 1 else ''} {', '.join(lacking[:NAMED])}"
        text = f"{which} can't load from the cold store of this engine: give cold= there, too"
        yield Reason("cold", text)


def _blind(shards: Sequence[ShardStats]) -> Iterator[Reason]:
    blind = [shard for shard in shards if shard.error]
    if blind:
        text = f"{_named_shards(blind)} could not be seen, the totals are without: {blind[0].error}"
        yield Reason("unseen_shards", text)


def _strays(shards: Sequence[ShardKeys]) -> Iterator[Reason]:
    if shards:
        text = (
            f"{named([keys.shard for keys in shards])}: out of use, and tasks are there that nobody looks for, as a "
            "server came back older. A dispatcher looks there when it starts, and each hour; `shardq doctor --fix` "
            "tells all dispatchers now"
        )
        yield Reason("strays", text)


def _failing(stats: Stats) -> Iterator[Reason]:
    failing = [shard for shard in stats.shards if shard.poller == "failing"]
    if failing:
        text = f"{_named_shards(failing)} can't be dispatched by this process: {failing[0].poller_error}"
        yield Reason("poller", text)
    stuck = [
        (shard.poller_idle, shard)
        for shard in stats.shards
        if shard.poller != "failing" and shard.poller_idle is not None and shard.poller_idle >= STUCK_S
    ]
    if stuck:
        longest = max(idle for idle, _ in stuck)
        shards = _named_shards([shard for _, shard in stuck])
        yield Reason("poller", f"{shards}: no step of this process's pollers for {longest:,.0f} s")
    for route in stats.failing_routes:
        text = f"topic {quoted_topic(route.topic)} can't be forwarded to {route.named} by this process: {route.error}"
        yield Reason("route", text)
    for relay in stats.relays:
        if relay.problem:
            text = f"an outbox relay of this process can't move rows of {relay.table}: {relay.problem}"
            yield Reason("outbox", text)
        if relay.unconfirmed:
            text = (
                f"rows of the outbox {relay.table} leave as soon as a server has answered, and a failover may lose "
                f"their tasks: {relay.unconfirmed}"
            )
            yield Reason("outbox", text)
        if relay.failed:
            text = (
                f"{relay.failed:,} rows of the outbox {relay.table} were put aside: `shardq outbox failed` lists them, "
                "`shardq outbox retry` and `shardq outbox drop` retry and remove them"
            )
            yield Reason("outbox", text)


def _sinks_down(stats: Stats, others: Iterable[Member]) -> Iterator[Reason]:
    """The circuits of other processes, as they report them; those of this one are among its failing routes."""
    told = {route.topic for route in stats.failing_routes}
    for sink in together(sink for member in others for sink in member.sinks):
        topic = stats.topics.get(sink.topic)
        # a report may be older than the route
        forwarded = topic is not None and topic.route is not None and not topic.route.is_here and not topic.paused
        if sink.circuit != "closed" and forwarded and sink.topic not in told:
            where = f"topic {quoted_topic(sink.topic)} can't be forwarded to {to_named(sink.to)}"
            text = f"{where}, and its tasks wait: {sink.error}"
            yield Reason("route", text)


def _overdue(shards: Sequence[ShardStats], max_late: float) -> Iterator[Reason]:
    late = [(shard.head_age, shard) for shard in shards if shard.head_age is not None and shard.head_age > max_late]
    if late:
        late.sort(key=lambda each: -each[0])
        text = (
            f"{_named_shards([shard for _, shard in late])}: tasks are overdue, by up to {late[0][0]:,.0f} s; either "
            "no dispatcher runs (`shardq run` starts one), or those that do can't keep up"
        )
        yield Reason("overdue", text)


def _deaf(lists: Sequence[Deaf]) -> Iterator[Reason]:
    """Topics whose ready tasks wake nobody, although somebody waits."""
    of_topic: dict[str, list[Deaf]] = {}
    for each in lists:
        of_topic.setdefault(each.topic, []).append(each)
    for topic, some in of_topic.items():
        oldest = max(some, key=lambda each: each.waited_s)
        text = (
            f"topic {quoted_topic(topic)}: ready tasks of {named([each.shard for each in some])} wake nobody; the "
            f"oldest has waited for {oldest.waited_s:,.0f} s, and the process {oldest.process} waits for one all the "
            "time. It looks by itself within a minute. If this comes again, look for a process of the topic that "
            "stands still, and for a warning about SPUBLISH"
        )
        yield Reason("deaf", text)


def _untaken(
    stats: Stats, fleet: Sequence[Member] | None, max_ready_age: float, deaf: Sequence[Deaf]
) -> Iterator[Reason]:
    """Topics whose ready tasks wait for too long, by what they wait for. ``fleet``: None if it could not be read."""
    told = {route.topic for route in stats.failing_routes} | {each.topic for each in deaf}
    old: dict[Kind, list[tuple[float, str, str]]] = {}
    for topic, seen in stats.topics.items():
        age = seen.oldest_ready
        if age is not None and age > max_ready_age and not seen.paused and topic not in told:
            kind, why = _why_untaken(topic, seen, fleet)
            old.setdefault(kind, []).append((age, topic, why))
    for kind, topics in old.items():
        topics.sort(key=lambda each: -each[0])
        for age, topic, why in topics[:NAMED]:
            ready = counted(stats.topics[topic].ready, "ready task")
            text = f"topic {quoted_topic(topic)}: the oldest of {ready} has waited for {age:,.0f} s; {why}"
            yield Reason(kind, text)
        if len(topics) > NAMED:
            text = f"ready tasks of {len(topics) - NAMED} more topics have waited as long: see `shardq topics`"
            yield Reason(kind, text)


def _why_untaken(topic: str, seen: TopicStats, fleet: Sequence[Member] | None) -> tuple[Kind, str]:
    limit, taken = seen.limit, seen.taken_per_s
    if seen.route is not None:
        if limit is not None and limit.rate is not None:
            return "limit", f"its limit of {limit.rate:g} a second lets no more through to {seen.route.named}"
        return "route", f"it is forwarded to {seen.route.named}, which does not keep up, or nobody serves it"
    serving = [worker for worker in workers(fleet or ()) if serves(worker, topic)]
    if fleet is not None and is_told(workers(fleet)) and not serving and not seen.leased and not taken:
        return "no_worker", "no worker that runs serves the topic: start one that has a handler or a task for it"
    if limit is not None and limit.concurrency is not None and seen.leased >= limit.concurrency:
        return "limit", f"its limit of {limit.concurrency:,} at once lets no more through"
    if limit is not None and limit.rate is not None and (taken is None or taken > limit.rate / 2):
        return "limit", f"its limit of {limit.rate:g} a second lets no more through"
    if serving and all(worker.concurrency and worker.running >= worker.concurrency for worker in serving):
        longest = sorted((task for worker in serving for task in worker.longest), key=lambda task: -task.seconds)
        if longest:
            ((holder, _),) = Counter(task.topic for task in longest).most_common(1)
            return "backlog", (
                f"tasks of topic {quoted_topic(holder)} hold the {sum(worker.concurrency for worker in serving):,} "
                f"places of the workers that serve it; the longest, {longest[0].id}, has been running for "
                f"{longest[0].seconds:,.0f} s: see what it waits for, and give it a timeout"
            )
    if serving:
        return "backlog", f"the {len(serving):,} workers that serve the topic can't keep up"
    return "backlog", "either no worker serves the topic, or those that do can't keep up"


def _not_healthy(others: Iterable[Member]) -> Iterator[Reason]:
    """The problems of workers of other processes, as they report them."""
    for worker in workers(others):
        for problem in worker.problems:
            yield Reason("worker", f"the worker {worker.host}:{worker.pid}: {problem}")


def _stuck(fleet: Iterable[Member]) -> Iterator[Reason]:
    """Workers whose every handler hangs."""
    for worker in workers(fleet):
        if worker.concurrency and worker.stuck >= worker.concurrency:
            longest = max(worker.longest, key=lambda task: task.seconds, default=None)
            which = f", task {longest.id} for {longest.seconds:,.0f} s" if longest is not None else ""
            text = (
                f"the worker {worker.host}:{worker.pid} takes nothing more: each of its {worker.concurrency:,} "
                "handlers has been running for longer than its timeout, or for ten minutes without one"
                f"{which}; see what it waits for, and give it a timeout"
            )
            yield Reason("stuck_worker", text)


def _stuck_keys(keys: Sequence[StuckKey]) -> Iterator[Reason]:
    """Keys that wait behind a task that is stuck."""
    for topic, key, waited_s, task in keys:
        text = (
            f"topic {quoted_topic(topic)}: a task of the key {quoted(key)} has waited for {waited_s:,.0f} s behind "
            f"task {task.id}, which has been running for {task.seconds:,.0f} s: see what that one waits for, "
            "and give it a timeout"
        )
        yield Reason("stuck_key", text)


def _unknown(fleet: Sequence[Member]) -> Iterator[Reason]:
    """Calls of named tasks that no worker knows."""
    found: dict[tuple[str, str], tuple[int, float]] = {}
    for worker in workers(fleet):
        for call in worker.unknown:
            if not any(knows(other, call.topic, call.task) for other in workers(fleet)):
                count, seconds = found.get((call.topic, call.task), (0, 0.0))
                found[call.topic, call.task] = count + call.count, max(seconds, call.seconds)
    calls = sorted(found.items(), key=lambda each: -each[1][0])
    for (topic, task), (count, seconds) in calls[:NAMED]:
        what = f"calls of {task!r}" if task else "payloads that name no function"
        text = (
            f"topic {quoted_topic(topic)}: no worker that runs knows {what}; workers have given them back {count:,} "
            f"times in {seconds:,.0f} s, and they wait: start a worker that has the function, or cancel them"
        )
        yield Reason("unknown_task", text)
    if len(calls) > NAMED:
        text = f"no worker knows the calls of {len(calls) - NAMED} more names: see `shardq fleet`"
        yield Reason("unknown_task", text)


def _deaths(stats: Stats, sample: Sequence[tuple[str, str]], max_dead: int) -> Iterator[Reason]:
    if stats.died_lately > max_dead:
        tasks = "1 task has" if stats.died_lately == 1 else f"{stats.died_lately:,} tasks have"
        text = f"{tasks} died in the last {LATELY_S / 60:.0f} minutes"
        if sample:
            ((topic, cause), count) = Counter((topic, cause_of(reason)) for topic, reason in sample).most_common(1)[0]
            text += f"; {count:,} of the last {len(sample):,} of topic {quoted_topic(topic)}, by {cause}"
        yield Reason("deaths", f"{text}: see `shardq list --state dead --newest`")
    if stats.trimmed_age is not None and stats.trimmed_age < LATELY_S:
        text = (
            f"dead tasks were removed {stats.trimmed_age:,.0f} s ago, before their time and for good, as more than "
            f"dead_count were dead; {stats.trimmed:,} in all by now: see `shardq list --state dead --newest`"
        )
        yield Reason("trimmed", text)


_OVERDUE = (
    "occurrences are overdue, and nobody has pushed them; either no dispatcher runs (`shardq run` starts one), or none "
    "of them can compute it"
)
_UNREADABLE = (
    "what is stored can't be read here; another version of shardq wrote it: upgrade, declare it anew, or remove it "
    "(`shardq every NAME --remove`)"
)


def _schedules(stats: Stats) -> Iterator[Reason]:
    if stats.schedules is None:
        return
    for concerned, what in ((stats.schedules.overdue, _OVERDUE), (stats.schedules.unreadable, _UNREADABLE)):
        if concerned:
            names = ", ".join(map(repr, concerned[:NAMED]))
            more = f" and {len(concerned) - NAMED} more" if len(concerned) > NAMED else ""
            yield Reason("schedule", f"schedule{'' if len(concerned) == 1 else 's'} {names}{more}: {what}")


def _named_shards(some: Sequence[ShardStats]) -> str:
    return named([each.shard for each in some])
