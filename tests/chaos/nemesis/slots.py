"""Slots that move from one master to another, and back, in both ways."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.cluster import Cluster
from cluster.node import Node
from shardq.core.layout.keys import shard_keys
from tests.chaos.grounds.ground import NAME
from tests.chaos.grounds.nodes import Nodes
from tests.chaos.nemesis.nemesis import Nemesis, Way, until
from tests.chaos.plan import Fault, FaultKind

BETWEEN_S = 0.5
"""A slot stays where it came to for so long, before it goes back."""


def _move(nemesis: Nemesis, fault: Fault) -> str:
    return _moved(nemesis, fault, by_server=False)


def _migrate(nemesis: Nemesis, fault: Fault) -> str:
    return _moved(nemesis, fault, by_server=True)


def _moved(nemesis: Nemesis, fault: Fault, *, by_server: bool) -> str:
    """Moves the slot of a shard to another master, and back."""
    assert isinstance(nemesis.ground, Nodes)
    cluster = nemesis.ground.cluster
    with nemesis.roles():
        slot = shard_keys(NAME, fault.target % nemesis.plan.shards).slot
        source = cluster.node_of_slot(slot)
        others = [node for node in cluster.masters if node is not source]
        target = others[fault.target % len(others)]
        with nemesis.one([source], fault), nemesis.one([target], fault), nemesis.losing():
            for from_node, to_node in ((source, target), (target, source)):
                if by_server:
                    _migrated(slot, from_node, to_node)
                else:
                    cluster.move_slot(slot, to_node)
                until(lambda to=to_node: _owns(cluster, slot, to), "all agree on the slot")  # type: ignore[misc]
                nemesis.lasts(BETWEEN_S)
        return f"{slot} from {source.address} to {target.address}, and back"


def _owns(cluster: Cluster, slot: int, node: Node) -> bool:
    views = [each.view() for each in cluster.nodes if each.running]
    return all(view[node.node_id].owns(slot) for view in views)


def _migrated(slot: int, source: Node, target: Node) -> None:
    source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", target.node_id)
    until(lambda: target.view()[target.node_id].owns(slot), "the slot has been migrated")


WAYS: Mapping[FaultKind, Way] = {"move slot": _move, "migrate slot": _migrate}
