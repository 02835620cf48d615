"""Advice on servers: settings that lose tasks or make them late, commands that an ACL or a proxy refuses,
limits that are too low for pollers; and just now nodes that failed, replicas that confirm nothing, clocks that differ.

Advice is logged at open and at start, once for each process and server; ``health()`` and ``shardq doctor`` tell all.
Finding advice never fails: a slow server is skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from shardq.core.calls import node_info, observe
from shardq.core.calls.node_info import FailedNode, Replication
from shardq.core.calls.request import Command
from shardq.core.dispatcher.poller import LONGEST_SLEEP_S, UNSUBSCRIBED_SLEEP_S
from shardq.core.drivers import descriptors
from shardq.core.drivers.election import Survey
from shardq.core.layout.keys import ShardKeys
from shardq.core.operation import AskSentinels, Many, Operation, Pause, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.errors import AccessDenied, ServerFault, ShardqError, Unanswered, Unavailable

T = TypeVar("T")

SERVERS = "shardq.advice"
"""The log for what is wrong with servers."""

LIMITS = "shardq.limits"
"""The log for limits that are too low for what this process has begun."""

NEARLY_FULL = 0.9
"""The part of its maxmemory from which on a server counts as full: what is left may go in minutes."""

TIMEOUT_S = 1.0
"""Opening must not wait longer for advice."""

_logged: set[Advice] = set()
"""The advice that this process has logged."""

_is_muted = False


Check = Literal[
    "server",
    "coverage",
    "sentinels",
    "eviction",
    "memory",
    "persistence",
    "replicas",
    "clocks",
    "commands",
    "clients",
    "files",
]
"""The subject of a piece of advice."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing that is wrong with one server. ``server`` is its run id: the next one on its port has another."""

    server: str
    check: Check
    text: str
    problem: bool = False
    """Tasks are lost, refused or late by now: a reason not to be healthy, not only a warning."""
    log: str = SERVERS


NAMED = 5
"""The most shards, schedules and topics that a sentence names; it counts the others."""

UNTOLD = "settings that lose tasks, and what replicas have, can't be told"
UNMOVED = "pushes with durability= are refused, and beside replicas no task is moved to another shard"
UNNAMED = "connections have no name in CLIENT LIST"
UNRUNG = f"what it pushes rings no poller and may be {LONGEST_SLEEP_S:g} s late"


def find_advice(
    slots: Mapping[str, int], shards: Mapping[str, ShardKeys], unserved: int, needs: Mapping[str, int]
) -> Operation[list[Advice]]:
    """Finds advice on these nodes. ``slots``: one slot of each node; ``shards``: one shard of each that has any;
    ``unserved``: the number of slots that no node serves; ``needs``: the further connections to each node that this
    process opens if it has to serve every shard.
    """
    found: list[Advice] = []
    if unserved:
        text = f"{unserved:,} slots of the cluster are served by no node: shards there can't be used"
        found.append(Advice("", "coverage", text))
    tried: dict[tuple[str, str], Command[Any]] = {}
    for node, slot in slots.items():
        tried[node, UNTOLD] = node_info.server_settings(slot)
        tried[node, UNMOVED], tried[node, UNNAMED] = node_info.waits(slot), node_info.named(slot)
    answers = dict((yield Many(tried | {(node, UNRUNG): observe.publishes(keys) for node, keys in shards.items()})))
    for asked in tried:
        if isinstance(answer := answers[asked], AccessDenied):
            found.append(Advice(answer.node, "commands", f"{asked[1]}: {answer}"))
    for node in shards:
        answer = answers[node, UNRUNG]
        if isinstance(answer, ServerFault) and not isinstance(answer, Unavailable | Unanswered):
            # pollers find its tasks when they look by themselves
            text = f"{node} lets this process publish nothing, so {UNRUNG}: {answer}"
            found.append(Advice("", "commands", text))
    settings: dict[str, node_info.ServerSettings] = succeeded((node, answers[node, UNTOLD]) for node in slots)
    unsure = {node: node_info.saves(slots[node]) for node, each in settings.items() if not each.appends}
    saving: dict[str, bool | None] = succeeded((yield Many(unsure)))
    for node, each in sorted(settings.items()):
        found += _of_settings(node, each, saves=saving.get(node), more=needs.get(node, 0) if needs else None)
    return [*found, *_of_descriptors(sum(needs.values()))]


def _of_settings(
    node: str, settings: node_info.ServerSettings, *, saves: bool | None, more: int | None
) -> Iterator[Advice]:
    """``saves``: False if it keeps nothing on its disk. ``more``: the further connections; None: they do not count."""
    server, full = settings.server, f"its maxmemory of {settings.maxmemory:,} bytes"
    # Keys of shardq have no TTL, so the volatile- policies evict none of them.
    evicts = settings.policy.startswith("allkeys-")
    if settings.maxmemory and evicts:
        text = f"{node} evicts tasks without an error when it reaches {full} (maxmemory-policy {settings.policy}): "
        yield Advice(server, "eviction", f"{text}set maxmemory-policy to noeviction")
    if settings.evicted:
        # The number is left out: one key may hold the tasks of a shard. Under a volatile- policy another program's
        # keys are evicted for as long as it runs.
        text = (
            f"{node} has evicted keys since it started, and tasks of this engine may be among them (maxmemory-policy "
            f"is {settings.policy} now): `shardq doctor --all` tells what is missing; this is said until the server is "
            "restarted, or told CONFIG RESETSTAT"
        )
        yield Advice(server, "eviction", text, problem=not settings.policy.startswith("volatile-"))
    if settings.maxmemory and settings.memory > NEARLY_FULL * settings.maxmemory:
        then = "evicts tasks" if evicts else "refuses pushes, while what is stored is still dispatched"
        text = (
            f"{node} uses more than {NEARLY_FULL:.0%} of {full}, and when that is full it {then}: raise maxmemory, or "
            "see what holds so many tasks (`shardq topics`)"
        )
        yield Advice(server, "memory", text, problem=True)
    if saves is False:
        text = f"{node} keeps nothing on its disk, so a restart loses every task: set appendonly to yes"
        yield Advice(server, "persistence", text)
    clients = settings.clients + (more or 0)
    if more is not None and 0 < settings.maxclients < clients:
        text = (
            f"{node} takes {settings.maxclients:,} clients, and may come to need {clients:,}, if this process has to "
            "serve every shard: raise its maxclients"
        )
        yield Advice(server, "clients", text, log=LIMITS)


def _of_descriptors(more: int) -> list[Advice]:
    allowed, needed = descriptors.allowed(), descriptors.in_use() + more if more else 0
    if needed <= allowed:
        return []
    text = (
        f"this process may have {allowed:,} files open, and may come to need {needed:,}, if it has to serve every "
        "shard (a connection for each, and for each server 1 to listen and up to 64 shared ones): "
        f"{descriptors.REMEDY}"
    )
    return [Advice("", "files", text, log=LIMITS)]


def unasked(path: Path) -> Advice:
    """Advice on an embedded server that is used because no URL is given. ``path``: where its data is."""
    text = (
        f"neither a url nor $SHARDQ_URL is given, so an embedded server of this user and machine is used, with its "
        f"data in {path}: give the url of your server, or embedded:// to use this one; SHARDQ_EMBEDDED=never forbids "
        "it"
    )
    return Advice("", "server", text, log="shardq")


def named(some: Sequence[int]) -> str:
    """Some shards, as a sentence names them.

    >>> named([3]), named(range(8))
    ('shard 3', 'shards 0, 1, 2, 3, 4 and 3 more')
    """
    numbers = ", ".join(map(str, some[:NAMED]))
    more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
    return f"shard{'' if len(some) == 1 else 's'} {numbers}{more}"


def unsubscribed(refusals: Mapping[str, str]) -> list[Advice]:
    """Advice on nodes that refuse this process its subscriptions. ``refusals``: node → the reason."""
    look = f"due tasks and changes are looked for every {UNSUBSCRIBED_SLEEP_S * 1000:g} ms"
    return [
        Advice("", "commands", f"{node} lets this process hear nothing, so {look}: {why}")
        for node, why in refusals.items()
    ]


def until(deadline: float) -> float:
    """The time until which advice is looked for now, before the deadline of what is opened."""
    return min(deadline, time.monotonic() + TIMEOUT_S)


def mute() -> None:
    """Ends the logging of advice in a process that shows all of it, such as ``shardq doctor``."""
    global _is_muted
    _is_muted = True


def log_new(found: Iterable[Advice]) -> None:
    """Logs the advice that this process has not logged yet."""
    for advice in () if _is_muted else found:
        if advice not in _logged:
            _logged.add(advice)
            logging.getLogger(advice.log).warning("%s", advice.text)


def unsaid(warnings: Iterable[str]) -> list[str]:
    """Returns the warnings that the log of this process has not shown."""
    shown = {advice.text for advice in _logged if logging.getLogger(advice.log).isEnabledFor(logging.WARNING)}
    return [warning for warning in warnings if warning not in shown]


SKEW_S = 1.0
"""Clocks that are further apart are told: tasks are due by their master's, ``at=`` goes by the caller's, and after a
failover by another server's."""


def find_faults(slots: Mapping[str, int], cache: TopologyCache) -> Operation[list[Advice]]:
    """Asks these nodes for their clocks, and any node for those that its cluster has declared failed. Nodes that can't
    be asked are left out. ``slots``: one slot of each node.
    """
    began = time.time()
    answers = yield Many({node: node_info.clock(slot) for node, slot in slots.items()})
    ended = time.time()
    clocks: dict[str, float] = succeeded(answers)
    failed = yield from find_failed()
    return [*skews(clocks, began, ended), *(Advice("", *_lost(node, cache), problem=True) for node in failed)]


def find_failed() -> Operation[list[FailedNode]]:
    """The nodes that a cluster has declared failed, if it can tell."""
    ((_, told),) = yield Many({"": node_info.failed_nodes()})
    return [] if isinstance(told, ShardqError) else told


def skews(clocks: Mapping[str, float], began: float, ended: float) -> Iterator[Advice]:
    """The differences between clocks of servers that were asked between two instants of this machine's. The time
    that the asking may have taken is no difference.

    >>> [each.text for each in skews({"a:1": 100.2, "b:1": 107.0}, 100.0, 100.5)][0][:53]
    'the clock of b:1 is 6.5 s ahead of that of this machi'
    """
    for node, clock in sorted(clocks.items()):
        ahead = clock - ended if clock > ended else min(0.0, clock - began)
        if abs(ahead) > SKEW_S:
            yield _skew(node, "this machine, so that tasks with at= fall due at another time", ahead)
    if clocks:
        slow, fast = min(clocks, key=clocks.__getitem__), max(clocks, key=clocks.__getitem__)
        apart = clocks[fast] - clocks[slow] - (ended - began)
        if apart > SKEW_S:
            yield _skew(fast, f"{slow}, so that a failover or a move of slots may shift due times", apart)


def _skew(node: str, other: str, ahead: float) -> Advice:
    text = (
        f"the clock of {node} is {abs(ahead):,.1f} s {'ahead of' if ahead > 0 else 'behind'} that of {other}: "
        "run an NTP service on each machine"
    )
    return Advice("", "clocks", text, problem=True)


AGREED_S = 1.0
"""Sentinels hear of a failover one after the other, within moments. After that they agree."""


def find_disagreement(ask: Callable[[float], Any]) -> Operation[list[Advice]]:
    """Asks all sentinels for the master, and other servers if they are masters, too. Where they don't agree they are
    asked again: only what two looks found counts.
    """
    found = list(of_sentinels((yield AskSentinels(ask))))
    if any(each.problem for each in found):
        yield Pause(AGREED_S)
        again = list(of_sentinels((yield AskSentinels(ask))))
        found = [each for each in again if not each.problem or each in found]
    return found


def of_sentinels(survey: Survey) -> Iterator[Advice]:
    """Advice on a service under Sentinel."""
    election = survey.election
    votes, asked = election.votes, election.asked
    for sentinel, why in sorted(survey.silent.items()):
        text = f"the sentinel {sentinel} tells no master: {why}; start it, or leave it out of the URL"
        yield Advice("", "sentinels", text)
    if len(votes) < election.majority:
        text = (
            f"{len(votes)} of the {asked} sentinels of the URL tell a master, and a majority is more: this process "
            "can't know if its master was replaced, and what a replaced one takes is lost"
        )
        yield Advice("", "sentinels", text, problem=True)
    known = max((vote.sentinels for vote in votes), default=0)
    if asked < known // 2 + 1:
        text = f"the URL names {asked} of the service's {known} sentinels, and so no majority: name all of them"
        yield Advice("", "sentinels", text)
    if len({vote.master for vote in votes}) > 1:
        told = "; ".join(map(str, votes))
        text = (
            f"the sentinels disagree: {told}; look at those that are cut off from the others, or watch another service"
        )
        yield Advice("", "sentinels", text, problem=True)
    for rival in survey.rivals:
        text = (
            f"{rival} says that it is a master, and the sentinels name {election.master or 'none'}: what a program "
            "still writes there is lost; end it, or see why the sentinels can't make it a replica, and set "
            "min-replicas-to-write"
        )
        yield Advice("", "sentinels", text, problem=True)


def replicas_behind(replication: Mapping[str, Replication]) -> Iterator[Advice]:
    """The replicas that have confirmed nothing for a while."""
    for node, state in sorted(replication.items()):
        for replica, lag in sorted(state.silent.items()):
            what = (
                "is copying all its data, and can't stand in for it yet"
                if lag is None
                else (
                    f"has confirmed nothing for {lag} s: it hangs, or is cut off; a failover to it loses what it lacks"
                )
            )
            yield Advice("", "replicas", f"the replica {replica} of {node} {what}", problem=True)


def _lost(node: FailedNode, cache: TopologyCache) -> tuple[Check, str]:
    if not node.slots:
        text = (
            f"the cluster has declared the node {node.address} ({'master' if node.is_master else 'replica'}) failed: "
            "start it again, or remove it from the cluster (CLUSTER FORGET, on every other node)"
        )
        return "coverage" if node.is_master else "replicas", text
    shards = [keys.shard for keys in cache.span() if node.serves(keys.slot)]
    kept = [f"what is stored in {named(shards)}"] if shards else []
    kept += ["the topology and the fleet's reports"] if node.serves(cache.control.slot) else []
    away = " and ".join(kept) or "nothing of this engine"
    return "coverage", f"{lost(node)}: {away} is away until it is started again"


def lost(node: FailedNode) -> str:
    """The sentence on a master that failed and that no replica stands in for."""
    slots = ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in node.slots)
    return (
        f"the cluster has declared the node {node.address} (master) failed, and no replica has taken over its slots "
        f"{slots}"
    )
