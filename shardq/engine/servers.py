"""Judges what is wrong with servers just now: nodes that failed, replicas that confirm nothing, clocks that differ.
Called by ``health()`` and ``shardq doctor``; settings are in ``advice``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from shardq.core.calls import node_info
from shardq.core.calls.node_info import FailedNode, Replication
from shardq.core.operation import Many, Operation
from shardq.core.topology_cache import TopologyCache
from shardq.engine.advice import Advice, Check, named
from shardq.errors import ShardqError

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
    clocks: dict[str, float] = {node: told for node, told in answers if not isinstance(told, ShardqError)}
    failed = yield from find_failed()
    return [*skews(clocks, began, ended), *(Advice("", *_lost(node, cache), problem=True) for node in failed)]


def find_failed() -> Operation[list[FailedNode]]:
    """The nodes that a cluster has declared failed, if it can tell."""
    ((_, told),) = yield Many({"": node_info.failed_nodes()})
    return [] if isinstance(told, ShardqError) else told


def skews(clocks: Mapping[str, float], began: float, ended: float) -> Iterator[Advice]:
    """The differences between clocks of servers that were asked between two instants of this machine's. What the asking
    itself may have taken counts for nobody.

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
