"""The judgement of an engine: is all well, and if not, why? ``health()`` makes it. Every sentence on what is wrong with
an engine as a whole is built here, those on servers in ``advice`` and ``servers``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import msgspec

from shardq.dispatcher.poller import STUCK_S
from shardq.engine.advice import Advice, Check
from shardq.engine.servers import replicas_behind
from shardq.engine.stats import ShardStats, Stats
from shardq.errors import InvalidOption
from shardq.fleet.member import Member, fleet
from shardq.fleet.serving import NO_DISPATCHER, dispatchers, unserved
from shardq.fleet.sinks import together
from shardq.layout.destinations import named as to_named
from shardq.operation import Operation, Pause
from shardq.spool.stats import SpoolStats
from shardq.spool.stats import problems as problems_of_spool
from shardq.topology_cache import TopologyCache

MAX_LATE_S = 5.0
"""A task that is due for longer than this is a reason. Other dispatchers take over from a killed one within four
seconds, from a stopped one at once, and no shard that is served falls this far behind.
"""

MAX_READY_AGE_S = 60.0
"""A ready task that nobody takes for longer than this is a reason: no worker serves its topic, or too few do."""

NAMED = 5
"""The most shards, schedules and topics that a sentence names; it counts the others."""

AGAIN_S = 1.5
"""Longer than a heartbeat's interval, with which dispatchers hear of each other."""


Kind = (
    Literal[
        "unseen_shards",
        "no_dispatcher",
        "unserved_shards",
        "poller",
        "route",
        "outbox",
        "worker",
        "overdue",
        "ready_age",
        "schedule",
        "spool",
    ]
    | Check
)
"""The kind of a reason: a name that stays, for metrics and programs; the sentences may change."""

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
    """A sentence for each thing that is wrong: shards that could not be seen, or that nobody serves; pollers, routes,
    schedulers, workers and outbox relays of this process that fail or stand still; sinks that are down for any process;
    tasks that are overdue, or that nobody takes; schedules that are overdue; servers that evict, are full, or failed;
    replicas that are behind; clocks that differ; a spool that can't be replayed.
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


def check_bound(seconds: float, option: str) -> None:
    if isinstance(seconds, bool) or not (isinstance(seconds, int | float) and 0 < seconds <= 1e9):
        raise InvalidOption(f"{option}={seconds!r} is not possible; give seconds, more than 0")


@dataclass(frozen=True, slots=True)
class Examined:
    """The findings of a look for health, beside the counts."""

    advised: list[Advice]
    unserved: Unserved | None
    """None if it can't be told."""


@dataclass(frozen=True, slots=True)
class Unserved:
    """The shards that no dispatcher says it serves."""

    shards: list[int]
    fleet: list[Member]
    """The processes that live."""

    @property
    def reasons(self) -> list[Reason]:
        alive = len(dispatchers(self.fleet))
        if not alive:
            return [Reason("no_dispatcher", NO_DISPATCHER)]
        if self.shards:
            text = (
                f"{named(self.shards)}: none of the {alive:,} dispatchers that live serves it; see their "
                "logs, and end one that hangs"
            )
            return [Reason("unserved_shards", text)]
        return []


def find_unserved(cache: TopologyCache) -> Operation[Unserved]:
    """Finds the shards that nobody serves. Shards change hands when a dispatcher comes or goes: only what two looks
    found counts, with some time between them.
    """
    found = yield from _unserved_now(cache)
    if found.shards and dispatchers(found.fleet):
        yield Pause(AGAIN_S)
        again = yield from _unserved_now(cache)
        shards = sorted(set(found.shards) & set(again.shards))
        found = Unserved(shards, again.fleet)
    return found


def _unserved_now(cache: TopologyCache) -> Operation[Unserved]:
    members = yield from fleet(cache.control)
    return Unserved(unserved(members, (keys.shard for keys in cache.span())), members)


def judge(
    stats: Stats, examined: Examined, *, max_late: float, max_ready_age: float, own: Iterable[Reason], process: str
) -> Health:
    """``own``: what is wrong with parts of this process. ``process``: its name as a dispatcher, empty if it is none."""
    fleet = examined.unserved.fleet if examined.unserved is not None else []
    advised = [*examined.advised, *replicas_behind(stats.replication)]
    reasons = [
        *_blind(stats.shards),
        *(examined.unserved.reasons if examined.unserved is not None else ()),
        *_failing(stats),
        *_sinks_down(stats, (member for member in fleet if member.name != process)),
        *own,
        *_overdue(stats.shards, max_late),
        *_untaken(stats, max_ready_age),
        *_schedules(stats),
        *(Reason(each.check, each.text) for each in advised if each.problem),
        *(of_spool(stats.spool) if stats.spool is not None else ()),
    ]
    warnings = [each.text for each in advised if not each.problem]
    none = Health(ok=True, reasons=[], kinds=[], warnings=warnings, stats=stats, fleet=fleet)
    return with_reasons(none, reasons)


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


def _blind(shards: Sequence[ShardStats]) -> Iterator[Reason]:
    blind = [shard for shard in shards if shard.error]
    if blind:
        text = f"{_named_shards(blind)} could not be seen, the totals are without: {blind[0].error}"
        yield Reason("unseen_shards", text)


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
        text = f"topic {route.topic!r} can't be forwarded to {route.named} by this process: {route.error}"
        yield Reason("route", text)
    for relay in stats.relays:
        if relay.problem:
            text = f"an outbox relay of this process can't move rows of {relay.table}: {relay.problem}"
            yield Reason("outbox", text)


def _sinks_down(stats: Stats, others: Iterable[Member]) -> Iterator[Reason]:
    """The circuits of other processes, as they report them; those of this one are among its failing routes."""
    told = {route.topic for route in stats.failing_routes}
    for sink in together(sink for member in others for sink in member.sinks):
        topic = stats.topics.get(sink.topic)
        # a report may be older than the route
        forwarded = topic is not None and topic.route is not None and not topic.route.is_here and not topic.paused
        if sink.circuit != "closed" and forwarded and sink.topic not in told:
            text = f"topic {sink.topic!r} can't be forwarded to {to_named(sink.to)}, and its tasks wait: {sink.error}"
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


def _untaken(stats: Stats, max_ready_age: float) -> Iterator[Reason]:
    old = [
        (seen.oldest_ready, topic, seen)
        for topic, seen in stats.topics.items()
        if not seen.held and seen.oldest_ready is not None and seen.oldest_ready > max_ready_age
    ]
    old.sort(key=lambda each: -each[0])
    for age, topic, seen in old[:NAMED]:
        limited = ", and its limit lets no more through" if seen.limit is not None else ""
        text = (
            f"topic {topic!r}: the oldest of {seen.ready:,} ready tasks has waited for {age:,.0f} s; either no worker "
            f"serves the topic, or those that do can't keep up{limited}"
        )
        yield Reason("ready_age", text)
    if len(old) > NAMED:
        text = f"ready tasks of {len(old) - NAMED} more topics have waited as long: see `shardq topics`"
        yield Reason("ready_age", text)


def _schedules(stats: Stats) -> Iterator[Reason]:
    overdue = stats.schedules.overdue if stats.schedules is not None else ()
    if overdue:
        names = ", ".join(map(repr, overdue[:NAMED]))
        more = f" and {len(overdue) - NAMED} more" if len(overdue) > NAMED else ""
        text = (
            f"schedule{'' if len(overdue) == 1 else 's'} {names}{more}: occurrences are overdue, and nobody has "
            "pushed them; either no dispatcher runs (`shardq run` starts one), or none of them can compute it"
        )
        yield Reason("schedule", text)


def _named_shards(some: Sequence[ShardStats]) -> str:
    return named([each.shard for each in some])


def named(some: Sequence[int]) -> str:
    """Some shards, as a sentence names them.

    >>> named([3]), named(range(8))
    ('shard 3', 'shards 0, 1, 2, 3, 4 and 3 more')
    """
    numbers = ", ".join(map(str, some[:NAMED]))
    more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    return f"shard{'' if len(some) == 1 else 's'} {numbers}{more}"
