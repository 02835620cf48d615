"""A cluster of processes, intact and with parts of it killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.exceptions import AskError, TryAgainError

from cluster.cluster import Cluster
from cluster.server import ServerFailed
from cluster.view import SLOTS
from tests.support.waiting import wait_until

_CALM_MS = 15_000
"""The timeout of nodes that nobody breaks: none is to take another's place because the machine stood still."""

_PATIENT_MS = 5000
"""Of nodes of which one is lost: none other is meanwhile."""

_KEY = "{a}:1"
_OTHER = "{a}:2"


def slot_of(cluster: Cluster, key: str) -> int:
    return int(cluster.nodes[0].ask("CLUSTER", "KEYSLOT", key))


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


@pytest.mark.slow
def test_a_slot_stopped_in_the_middle_of_its_move(server_binary: Path) -> None:
    with Cluster(server_binary, masters=2, replicas=0, node_timeout_ms=_CALM_MS) as cluster:
        slot = slot_of(cluster, _KEY)
        source = cluster.node_of_slot(slot)
        target = next(node for node in cluster.masters if node is not source)
        for number in range(10):
            source.ask("SET", f"{{a}}:{number}", number)
        move = cluster.begin_move(slot, target)
        assert move.carry(9) == 9
        left = source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10)
        assert len(left) == 1
        with pytest.raises(TryAgainError):
            source.ask("MGET", left[0], "{a}:absent")
        with pytest.raises(AskError, match=f"{slot} {target.address}"):
            source.ask("GET", "{a}:absent")
        move.finish()
        assert cluster.node_of_slot(slot) is target
        assert [target.ask("GET", f"{{a}}:{number}") for number in range(10)] == [str(n) for n in range(10)]
        cluster.wait_ok()
        with pytest.raises(ServerFailed, match="already"):
            cluster.begin_move(slot, target)


@pytest.mark.slow
def test_a_replica_takes_over_and_the_lost_master_comes_back_as_its_replica(server_binary: Path) -> None:
    options = {"appendonly": "yes"}
    with Cluster(server_binary, masters=3, replicas=1, node_timeout_ms=_PATIENT_MS, options=options) as cluster:
        slot = slot_of(cluster, _KEY)
        lost = cluster.node_of_slot(slot)
        lost.ask("SET", _KEY, "1")
        (replica,) = cluster.replicas_of(lost)
        wait_until(lambda: replica.ask("DBSIZE") == 1, "the replica has it")
        lost.kill()
        promoted = cluster.wait_promoted(lost)
        assert promoted is cluster.node_of_slot(slot)
        assert promoted in cluster.masters
        assert promoted.ask("GET", _KEY) == "1"
        lost.restart()
        cluster.wait_ok()
        assert cluster.replicas_of(promoted) == [lost]


@pytest.mark.slow
def test_a_node_more_and_its_replica(server_binary: Path) -> None:
    with Cluster(server_binary, masters=1, replicas=0, node_timeout_ms=_CALM_MS) as cluster:
        node = cluster.add_node()
        cluster.nodes[0].ask("SET", _OTHER, "1")
        slot = slot_of(cluster, _OTHER)
        cluster.move_slot(slot, node)
        assert cluster.masters == [cluster.nodes[0], node]
        assert node.ask("GET", _OTHER) == "1"
        replica = cluster.add_node(replica_of=node)
        assert cluster.replicas_of(node) == [replica]


def test_a_cluster_needs_a_master() -> None:
    with pytest.raises(ValueError, match="at least 1 master"):
        Cluster(masters=0)
