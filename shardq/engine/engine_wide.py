"""Operations on the whole engine: changes of its topology, the log of them, the counts of all shards, and the rates
between two readings of these.
"""

from __future__ import annotations

import datetime as dt
import getpass
import os
import socket
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from shardq.core.calls import control, node_info, observe
from shardq.core.calls.node_info import Replication
from shardq.core.calls.observe import ShardCounts
from shardq.core.calls.request import Epoch
from shardq.core.fleet.member import Member, dispatchers, fleet
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import MOST_ENDS_OF_A_SHARD, Limit, Route, TopicSettings, Topology
from shardq.core.layout.words import UNDECODABLE, shown_id
from shardq.core.model.checks import shown_instant
from shardq.core.model.ids import quoted_topic, shown_topic
from shardq.core.operation import Many, Operation, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_edits import edit_topology, take_up_keys
from shardq.core.topology_recovery import call_every_shard, topology_in_force
from shardq.errors import AccessDenied, InvalidOption, InvalidUrl, ShardqError
from shardq.features.listing.ends import since


def with_route(topology: Topology, topic: str, route: Route | None) -> Topology:
    """The topology by which a topic's payloads are forwarded; None ends that."""
    edited = topology.with_topic(topic, route=route)
    if route is not None and edited.settings_of(topic).keeps_no_ends and edited.settings_of(topic).done_age:
        raise InvalidOption(_no_ends(topic, route))
    if (at_once := edited.settings_of(topic).uncounted) is not None:
        raise InvalidOption(
            f"the topic {quoted_topic(topic)} is limited to {at_once:,} at once, so it can't be forwarded: "
            "its tasks would leave, and are then not counted; end that limit first, or leave a rate alone"
        )
    return edited


def _no_ends(topic: str, route: Route) -> str:
    return (
        f"topic {quoted_topic(topic)}: it can't be forwarded to {route.named} and keep the ends of its tasks: these "
        "leave, and nothing tells when they are done; give done_age=None, or stop forwarding it first"
    )


def with_limit(topology: Topology, topic: str, limit: Limit) -> Topology:
    """The topology by which a topic is limited; an empty limit ends that."""
    edited = topology.with_topic(topic, limit=limit if limit != Limit() else None)
    settings = edited.settings_of(topic)
    if settings.route is not None and settings.uncounted is not None:
        raise InvalidOption(
            f"the topic {quoted_topic(topic)} is forwarded to {settings.route.named}, so it can't be limited "
            f"to {settings.uncounted:,} at once: its tasks leave, and are then not counted; give a rate alone, or "
            "stop forwarding it first"
        )
    return edited


TOPICS_AT_ONCE = 500
"""The topics whose settings one change sets: some milliseconds of the server."""


def configure_topics(
    cache: TopologyCache, given: Mapping[str, Mapping[str, Any]], *, dry_run: bool
) -> Operation[dict[str, TopicSettings]]:
    """Sets the given ones of the settings of up to ``TOPICS_AT_ONCE`` topics. Returns those that this changes."""
    edited: dict[str, TopicSettings] = {}

    def edit(topology: Topology) -> Topology:
        nonlocal edited
        settings = {
            topic: msgspec.structs.replace(topology.settings_of(topic), **changes) for topic, changes in given.items()
        }
        for topic, each in settings.items():
            _check_together(topic, each, topology.settings.done_age)
        edited = {topic: each for topic, each in settings.items() if each != topology.settings_of(topic)}
        return topology.with_topics(edited)

    if dry_run:
        edit((yield from topology_in_force(cache)))
    else:
        if any((each.get("limit") or Limit()).per_key is not None for each in given.values()):
            yield from take_up_keys(cache)
        yield from edit_topology(cache, edit)
        if edited:
            more = f" and {len(edited) - SHOWN:,} more" if len(edited) > SHOWN else ""
            yield from note(cache, f"topics configured: {', '.join(map(shown_topic, list(edited)[:SHOWN]))}{more}")
    return edited


def _check_together(topic: str, settings: TopicSettings, most_s: float) -> None:
    if settings.route is not None and settings.done_age and settings.keeps_no_ends:
        raise InvalidOption(_no_ends(topic, settings.route))
    if (settings.done_age or 0) > most_s:
        raise InvalidOption(
            f"topic {quoted_topic(topic)}: done_age={settings.done_age:g} is not possible; give the engine's, which is "
            f"{most_s:g} s, at most, or raise that first: configure(done_age=…)"
        )
    if settings.route is not None and settings.uncounted is not None:
        raise InvalidOption(
            f"topic {quoted_topic(topic)}: it can't be forwarded to {settings.route.named} and limited to "
            f"{settings.uncounted:,} at once: its tasks leave, and are then not counted; give a rate alone"
        )


def with_settings(topology: Topology, changes: Mapping[str, int | float]) -> Topology:
    """The topology with other settings of the engine, by name."""
    most = MOST_ENDS_OF_A_SHARD * topology.shards
    if changes.get("done_count", 0) > most:
        raise InvalidOption(
            f"done_count={changes['done_count']:,} is not possible; give {MOST_ENDS_OF_A_SHARD:,} for each shard at "
            f"most, which is {most:,} here"
        )
    return msgspec.structs.replace(topology, settings=msgspec.structs.replace(topology.settings, **changes))


def link_far(cache: TopologyCache, identity: str, place: str) -> Operation[str]:
    """Notes that the engine has tasks in the far store of this identity, if it has no far store yet. Returns the
    identity of the one that it has. Raises InvalidUrl while a dispatcher loads from another place: one of the two is a
    copy.
    """
    from shardq.features.far.rows import LINK  # here: most engines have none

    if LINK not in cache.topology.links:
        yield from edit_topology(
            cache, lambda topology: msgspec.structs.replace(topology, links={LINK: identity, **topology.links})
        )
        yield from note(cache, f"has tasks in another store from now on: {LINK}")
    if place and cache.topology.links[LINK] == identity:
        members = list[Member]()
        with suppress(AccessDenied):
            members = yield from fleet(cache.control)
        for member in dispatchers(members):
            if member.loads_from not in ("", place):
                raise InvalidUrl(
                    f"the dispatcher {member.host}:{member.pid} loads far tasks from another database, and one of the "
                    "two is a copy: give the same far= everywhere; to go on with this one, end the processes that "
                    "have the other"
                )
    return cache.topology.links[LINK]


DRAWN_IN_ALL = 3200
"""The ids that are drawn from all shards together, for each state: with even shards an estimate is then off by two
hundredths of all tasks of its state at most, nineteen times of twenty; and it costs the servers some milliseconds,
whatever they hold.
"""

DRAWN_AT_LEAST = 16
"""From each shard."""

WHOLE = 6400
"""A shard with up to so many tasks in a state, and up to ``32 * draw``, tells the topics of all: a millisecond of the
server, and 100,000 tasks in 16 shards.
"""


def drawn_of_a_shard(shards: int) -> int:
    """How many ids are drawn from each shard, at most.

    >>> drawn_of_a_shard(1), drawn_of_a_shard(16), drawn_of_a_shard(1024)
    (3200, 200, 16)
    """
    return max(DRAWN_AT_LEAST, DRAWN_IN_ALL // shards)


def whole_of_a_shard(shards: int) -> int:
    """Up to how many ids of a state a shard tells the topics of all, as ``peek.lua`` has it.

    >>> whole_of_a_shard(1), whole_of_a_shard(16), whole_of_a_shard(1024)
    (6400, 6400, 512)
    """
    draw = drawn_of_a_shard(shards)
    return max(draw, min(32 * draw, WHOLE))


CountsByShard = list[tuple[ShardKeys, ShardCounts | ShardqError]]


def count_shards(cache: TopologyCache, known: dict[int, list[str]]) -> Operation[CountsByShard]:
    """Every shard with the ready lists of all its topics, or why it can't be seen: a look is wanted most then.

    ``known`` keeps the topics from one look to the next.
    """
    draw = drawn_of_a_shard(len(cache.topology.span()))

    def make(keys: ShardKeys, epoch: Epoch) -> observe.Peek:
        return observe.peek(keys, epoch, known.get(keys.shard, []), draw=draw).briefly()

    while True:
        counts_by_shard = yield from call_every_shard(cache, make)
        new = {
            keys.shard: list(counts.dispatched)
            for keys, counts in succeeded(counts_by_shard).items()
            if counts.dispatched.keys() != counts.ready.keys()
        }
        if not new:
            return counts_by_shard
        known |= new


def replication(counts_by_shard: CountsByShard, nodes: Mapping[int, str]) -> Operation[dict[str, Replication]]:
    """Returns how far the replicas of each node are, for nodes that answer. ``nodes``: slot → its node."""
    slots = {nodes[keys.slot]: keys.slot for keys in succeeded(counts_by_shard)}
    answers = yield Many({node: node_info.replication(slot).briefly() for node, slot in slots.items()})
    return succeeded(answers)


def ends_since(cache: TopologyCache) -> Operation[dt.datetime | None]:
    """The instant since which all ends are kept; None without any, and where a shard could not be read."""
    try:
        at_ms = yield from since(cache)
    except ShardqError:
        return None
    return None if at_ms is None else shown_instant(at_ms)


T = TypeVar("T")

SHOWN = 5
"""Topics named in a sentence."""

KEPT = 100

_MOST = 200
"""Characters of a change."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change that an operator made: a pause, a limit, a route, a resize, a setting, or a command on many tasks.

    >>> for change in engine.changes():
    ...     print(change.at, change.by, change.what)
    """

    at: dt.datetime
    """In UTC, by the clock of the process that made it."""
    by: str
    """The user, the host and the program with its process id."""
    what: str
    """A sentence."""


def noted(cache: TopologyCache, making: Operation[T], what: str | Callable[[T], str]) -> Operation[T]:
    """Makes a change, and notes it when it is made. ``what``: in words, or a function of its result; empty: nothing."""
    result = yield from making
    yield from note(cache, what if isinstance(what, str) else what(result))
    return result


def note(cache: TopologyCache, what: str) -> Operation[None]:
    if not what:
        return
    change = Change(at=dt.datetime.now(dt.UTC), by=shown_id(_this_process()), what=what[:_MOST])
    with suppress(ShardqError):
        yield control.add_change(cache.control, msgspec.json.encode(change)).briefly()
        yield control.keep_changes(cache.control, KEPT).briefly()


def read_changes(cache: TopologyCache) -> Operation[list[Change]]:
    texts: list[bytes] = yield control.read_changes(cache.control)
    found: list[Change] = []
    for text in texts:
        with suppress(*UNDECODABLE):  # written by another version, or another program
            found.append(msgspec.json.decode(text, type=Change))
    return found


def _this_process() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user}@{socket.gethostname()} ({Path(sys.argv[0]).name or 'python'}, {os.getpid()})"


LEAST_S = 1.0
"""Rates are over this time, or the time between two looks if that is longer."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The tasks that went through an engine in a second, since a look of the same engine a second or longer ago. Shards
    that could not be seen in both looks are not counted.

    >>> if rates := engine.stats().rates:
    ...     print(rates.scheduled, rates.dispatched, rates.taken, rates.forwarded)
    """

    seconds: float
    """The time between the two looks."""
    scheduled: float
    """Tasks that became scheduled: pushes and retries, less those that were cancelled before they were due."""
    dispatched: float
    """Tasks that became ready."""
    taken: float
    """Tasks that left their ready list: claimed by consumers, or forwarded."""
    forwarded: float
    """Tasks that a dispatcher put on the list of a route in the same slot."""


@dataclass(frozen=True)
class Interval:
    """The rates between two looks."""

    total: Rates
    dispatched_of_shard: dict[int, float] = field(default_factory=dict)
    dispatched: dict[str, float] = field(default_factory=dict)
    """Topic → tasks dispatched in a second."""
    taken: dict[str, float] = field(default_factory=dict)


class RateMeter:
    """Keeps the looks of the last second, and the one before them."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, dict[int, ShardCounts]]] = deque()
        self._lock = threading.Lock()
        """Threads may share an engine."""

    def note(self, counts_by_shard: CountsByShard, now: float) -> Interval | None:
        """Notes a look at a monotonic instant. Returns what happened since the one a second before; None at the
        first.
        """
        seen = {keys.shard: counts for keys, counts in succeeded(counts_by_shard).items()}
        with self._lock:
            looks = self._looks
            looks.append((now, seen))
            while len(looks) > 2 and now - looks[1][0] >= LEAST_S:
                looks.popleft()
            began, before = looks[0]
        return _between(before, seen, now - began) if now > began else None


def _between(before: dict[int, ShardCounts], now: dict[int, ShardCounts], seconds: float) -> Interval:
    scheduled = forwarded = reaped = 0
    of_shard = dict.fromkeys(now, 0.0)
    dispatched, taken = Counter[str](), Counter[str]()
    for shard in before.keys() & now.keys():
        old, new = before[shard], now[shard]
        scheduled += new.scheduled + new.held - old.scheduled - old.held
        forwarded += new.forwarded - old.forwarded
        reaped += new.reaped - old.reaped
        for topic in new.dispatched:
            came = new.dispatched[topic] - old.dispatched.get(topic, 0)
            dispatched[topic] += came
            taken[topic] += came - (new.ready.get(topic, 0) - old.ready.get(topic, 0))
            of_shard[shard] += max(0, came) / seconds
    came, went = sum(dispatched.values()), sum(taken.values()) + reaped

    def rate(count: float) -> float:
        # a failover, or tasks that moved, may have taken counts back
        return round(max(0.0, count / seconds), 3)

    return Interval(
        Rates(
            seconds=round(seconds, 3),
            scheduled=rate(scheduled + came),
            dispatched=rate(came),
            taken=rate(went),
            forwarded=rate(forwarded),
        ),
        dispatched_of_shard={shard: rate(each * seconds) for shard, each in of_shard.items()},
        dispatched={topic: rate(count) for topic, count in dispatched.items()},
        taken={topic: rate(count) for topic, count in taken.items()},
    )
