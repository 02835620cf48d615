"""The servers behind a URL are found, each once."""

from __future__ import annotations

from cluster.cluster import Cluster
from tests.support.servers import Servers


def test_a_master_with_several_ranges_of_slots_is_one(cluster: Cluster) -> None:
    source = cluster.node_of_slot(100)
    target = next(node for node in cluster.masters if node is not source)
    cluster.move_slot(100, target)
    try:
        with Servers(cluster.url) as servers:
            assert len(servers.masters) == len(cluster.masters)
            assert servers.master(99) is servers.master(101) is not servers.master(100)
    finally:
        cluster.move_slot(100, source)
