"""Judges what is wrong with servers just now: nodes that failed, replicas that confirm nothing, clocks that differ.
Called by ``health()`` and ``shardq doctor``; settings are in ``advice``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from shardq.calls import observe
from shardq.calls.observe import Replication
from shardq.engine.advice import Advice
from shardq.errors import ShardqError
from shardq.operation import Many, Operation

SKEW_S = 1.0
"""Clocks that are further apart are told: tasks are due by their master's, ``at=`` goes by the caller's, and after a
failover by another server's."""


def find_faults(slots: Mapping[str, int]) -> Operation[list[Advice]]:
    """Asks these nodes for their clocks, and one of them for the nodes that its cluster has declared failed. Nodes that
    can't be asked are left out. ``slots``: one slot of each node.
    """
    began = time.time()
    answers = yield Many({node: observe.clock(slot) for node, slot in slots.items()})
    ended = time.time()
    clocks: dict[str, float] = {node: told for node, told in answers if not isinstance(told, ShardqError)}
    answers = yield Many([(node, observe.failed_nodes(slot)) for node, slot in list(slots.items())[:1]])
    failed = [node for _, told in answers if not isinstance(told, ShardqError) for node in told]
    return [*skews(clocks, began, ended), *(_failed(node) for node in failed)]


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


def _failed(node: str) -> Advice:
    text = (
        f"the cluster has declared the node {node} failed: start it again, or remove it from the cluster "
        "(CLUSTER FORGET, on every other node)"
    )
    return Advice("", "replicas" if node.endswith("(replica)") else "coverage", text, problem=True)
