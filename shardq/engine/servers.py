"""The looks at servers: settings that lose tasks or make them late, commands that an ACL or a proxy refuses, limits
that are too low for pollers; and just now nodes that failed, sentinels that disagree, replicas that confirm nothing,
clocks that differ. And the log of what is found when an engine opens and starts: each once for a process and server.

A look never fails: a slow server is skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from shardq.core.calls import node_info, observe
from shardq.core.calls.node_info import FailedNode, Replication
from shardq.core.calls.request import Command
from shardq.core.dispatcher.poller import LONGEST_SLEEP_S, UNSUBSCRIBED_SLEEP_S
from shardq.core.drivers import descriptors
from shardq.core.drivers.election import Survey
from shardq.core.layout.keys import ShardKeys
from shardq.core.operation import AskSentinels, Many, Operation, Pause, succeeded
from shardq.core.topology_cache import TopologyCache
from shardq.engine.findings import Finding, Severity, found, named, reds
from shardq.errors import AccessDenied, ServerFault, ShardqError, Unanswered, Unavailable

SERVERS = "shardq.advice"
"""The log for what is wrong with servers."""

LIMITS = "shardq.limits"
"""The log for limits that are too low for what this process has begun."""

_LOGS: Mapping[str, str] = {"few_clients": LIMITS, "few_files": LIMITS, "unasked_server": "shardq"}

NEARLY_FULL = 0.9
"""The part of its maxmemory from which on a server counts as full: what is left may go in minutes."""

TIMEOUT_S = 1.0
"""Opening must not wait longer for a look."""

Found = dict[Finding, str]
"""Finding → the run id of its server, as the next one on its port has another; empty: of none."""


def find_settings(
    slots: Mapping[str, int], shards: Mapping[str, ShardKeys], unserved: int, needs: Mapping[str, int]
) -> Operation[Found]:
    """Looks at how these nodes are set up. ``slots``: one slot of each node; ``shards``: one shard of each that has
    any; ``unserved``: the number of slots that no node serves; ``needs``: the further connections to each node that
    this process opens if it has to serve every shard.
    """
    told: Found = {found("unserved_slots", slots=unserved): ""} if unserved else {}
    tried: dict[tuple[str, str], Command[Any]] = {}
    for node, slot in slots.items():
        tried[node, "refused_info"] = node_info.server_settings(slot)
        tried[node, "refused_wait"], tried[node, "refused_name"] = node_info.waits(slot), node_info.named(slot)
    tried |= {(node, "refused_publish"): observe.publishes(keys) for node, keys in shards.items()}
    answers = dict((yield Many(tried)))
    for (node, name), answer in answers.items():
        # a server may refuse to publish for another reason; pollers find its tasks when they look by themselves
        if isinstance(answer, AccessDenied) or (
            name == "refused_publish"
            and isinstance(answer, ServerFault)
            and not isinstance(answer, Unavailable | Unanswered)
        ):
            told[found(name, about=node, node=node, error=answer, seconds=LONGEST_SLEEP_S)] = answer.node
    settings: dict[str, node_info.ServerSettings] = succeeded((node, answers[node, "refused_info"]) for node in slots)
    unsure = {node: node_info.saves(slots[node]) for node, each in settings.items() if not each.appends}
    saving: dict[str, bool | None] = succeeded((yield Many(unsure)))
    for node, each in sorted(settings.items()):
        of_node = _of_settings(node, each, saves=saving.get(node), more=needs.get(node, 0) if needs else None)
        told |= dict.fromkeys(of_node, each.server)
    return told | dict.fromkeys(_of_descriptors(sum(needs.values())), "")


def _of_settings(
    node: str, settings: node_info.ServerSettings, *, saves: bool | None, more: int | None
) -> Iterator[Finding]:
    """``saves``: False if it keeps nothing on its disk. ``more``: the further connections; None: they do not count."""
    full, policy = settings.maxmemory, settings.policy
    # Keys of shardq have no TTL, so the volatile- policies evict none of them.
    evicts = policy.startswith("allkeys-")
    if full and evicts:
        yield found("evicts", about=node, node=node, bytes=full, policy=policy)
    if settings.evicted:
        # The number is left out: one key may hold the tasks of a shard. Under a volatile- policy another program's
        # keys are evicted for as long as it runs.
        severity: Severity = "warning" if policy.startswith("volatile-") else "red"
        yield found("evicted", about=node, severity=severity, node=node, policy=policy)
    if full and settings.memory > NEARLY_FULL * full:
        then = "evicts tasks" if evicts else "refuses pushes, while what is stored is still dispatched"
        yield found("nearly_full", about=node, node=node, part=NEARLY_FULL, bytes=full, then=then)
    if saves is False:
        yield found("no_disk", about=node, node=node)
    needed = settings.clients + (more or 0)
    if more is not None and 0 < settings.maxclients < needed:
        yield found("few_clients", about=node, node=node, clients=settings.maxclients, needed=needed)


def _of_descriptors(more: int) -> list[Finding]:
    allowed, needed = descriptors.allowed(), descriptors.in_use() + more if more else 0
    return [] if needed <= allowed else [found("few_files", allowed=allowed, needed=needed, remedy=descriptors.REMEDY)]


def unsubscribed(refusals: Mapping[str, str]) -> list[Finding]:
    """The nodes that refuse this process its subscriptions. ``refusals``: node → the reason."""
    ms = UNSUBSCRIBED_SLEEP_S * 1000
    return [found("refused_subscribe", about=node, node=node, ms=ms, error=why) for node, why in refusals.items()]


# ---- the log at opening

_logged: set[tuple[Finding, str]] = set()
"""What this process has logged, with the run id of its server."""

_is_muted = False


def until(deadline: float) -> float:
    """The time until which an engine that opens looks, before its own deadline."""
    return min(deadline, time.monotonic() + TIMEOUT_S)


def mute() -> None:
    """Ends the log of findings in a process that shows all of them, such as ``shardq doctor``."""
    global _is_muted
    _is_muted = True


def log_new(told: Found) -> None:
    """Logs the findings that this process has not logged yet."""
    for finding, server in () if _is_muted else told.items():
        if (finding, server) not in _logged:
            _logged.add((finding, server))
            logging.getLogger(_LOGS.get(finding.name, SERVERS)).warning("%s", finding)


def unsaid(warnings: Iterable[str]) -> list[str]:
    """Returns the warnings that the log of this process has not shown."""
    logs = {finding: logging.getLogger(_LOGS.get(finding.name, SERVERS)) for finding, _ in _logged}
    shown = {str(finding) for finding, log in logs.items() if log.isEnabledFor(logging.WARNING)}
    return [warning for warning in warnings if warning not in shown]


# ---- nodes and clocks

SKEW_S = 1.0
"""Clocks that are further apart are told: tasks are due by their master's, ``at=`` goes by the caller's, and after a
failover by another server's."""


def find_faults(slots: Mapping[str, int], cache: TopologyCache) -> Operation[list[Finding]]:
    """Asks these nodes for their clocks, and any node for those that its cluster has declared failed. Nodes that can't
    be asked are left out. ``slots``: one slot of each node.
    """
    began = time.time()
    answers = yield Many({node: node_info.clock(slot) for node, slot in slots.items()})
    ended = time.time()
    clocks: dict[str, float] = succeeded(answers)
    failed = yield from find_failed()
    return [*skews(clocks, began, ended), *(_failed(node, cache) for node in failed)]


def find_failed() -> Operation[list[FailedNode]]:
    """The nodes that a cluster has declared failed, if it can tell."""
    ((_, told),) = yield Many({"": node_info.failed_nodes()})
    return [] if isinstance(told, ShardqError) else told


def _failed(node: FailedNode, cache: TopologyCache) -> Finding:
    if not node.slots:
        role = "master" if node.is_master else "replica"
        return found("failed_node", about=node.address, node=node.address, role=role)
    shards = [keys.shard for keys in cache.span() if node.serves(keys.slot)]
    kept = [f"what is stored in {named(shards)}"] if shards else []
    kept += ["the topology and the fleet's reports"] if node.serves(cache.control.slot) else []
    return lost(node, " and ".join(kept) or "nothing of this engine")


def lost(node: FailedNode, away: str) -> Finding:
    """A master that failed and that no replica stands in for. ``away``: what it holds."""
    slots = ", ".join(f"{first}-{last}" if first < last else f"{first}" for first, last in node.slots)
    return found("lost_slots", about=node.address, node=node.address, slots=slots, away=away)


def skews(clocks: Mapping[str, float], began: float, ended: float) -> Iterator[Finding]:
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


def _skew(node: str, other: str, ahead_s: float) -> Finding:
    ahead = "ahead of" if ahead_s > 0 else "behind"
    return found("clocks", about=node, node=node, other=other, seconds=abs(ahead_s), ahead=ahead)


# ---- replicas and sentinels


def replicas_behind(replication: Mapping[str, Replication]) -> Iterator[Finding]:
    """The replicas that have confirmed nothing for a while."""
    for node, state in sorted(replication.items()):
        for replica, lag_s in sorted(state.silent.items()):
            name = "new_replica" if lag_s is None else "silent_replica"
            yield found(name, about=replica, replica=replica, node=node, seconds=lag_s)


AGREED_S = 1.0
"""Sentinels hear of a failover one after the other, within moments. After that they agree."""


def find_disagreement(ask: Callable[[float], Any]) -> Operation[list[Finding]]:
    """Asks all sentinels for the master, and other servers if they are masters, too. Where they don't agree they are
    asked again: only what two looks found counts.
    """
    told = list(of_sentinels((yield AskSentinels(ask))))
    if reds(told):
        yield Pause(AGREED_S)
        again = list(of_sentinels((yield AskSentinels(ask))))
        told = [each for each in again if each.severity != "red" or each in told]
    return told


def of_sentinels(survey: Survey) -> Iterator[Finding]:
    """The findings on a service under Sentinel."""
    election = survey.election
    votes, asked = election.votes, election.asked
    for sentinel, why in sorted(survey.silent.items()):
        yield found("silent_sentinel", about=sentinel, sentinel=sentinel, why=why)
    if len(votes) < election.majority:
        yield found("few_sentinels", votes=len(votes), asked=asked)
    known = max((vote.sentinels for vote in votes), default=0)
    if asked < known // 2 + 1:
        yield found("unnamed_sentinels", asked=asked, known=known)
    if len({vote.master for vote in votes}) > 1:
        yield found("split_sentinels", told="; ".join(map(str, votes)))
    for rival in survey.rivals:
        yield found("second_master", about=rival, rival=rival, master=election.master or "none")
