"""A cluster of processes, as it is when it is up."""

from __future__ import annotations

import pytest

from cluster.cluster import Cluster
from cluster.view import SLOTS


def test_every_node_agrees_when_it_is_up(cluster: Cluster) -> None:
    assert (len(cluster.masters), len(cluster.replicas)) == (3, 3)
    for node in cluster.nodes:
        assert "cluster_state:ok" in node.ask("CLUSTER", "INFO")
        view = node.view()
        assert sum(last - first + 1 for seen in view.values() for first, last in seen.slots) == SLOTS
        assert set(view) == {each.node_id for each in cluster.nodes}
    for master in cluster.masters:
        assert len(cluster.replicas_of(master)) == 1
        assert cluster.replicas_of(master)[0].group == master.group


def test_its_masters_are_in_the_order_of_their_slots(cluster: Cluster) -> None:
    assert [cluster.node_of_slot(slot) for slot in (0, SLOTS // 2, SLOTS - 1)] == cluster.masters


def test_a_cluster_needs_a_master() -> None:
    with pytest.raises(ValueError, match="at least 1 master"):
        Cluster(masters=0)
