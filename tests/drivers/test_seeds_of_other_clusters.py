"""A node that was retired, and serves in another cluster by now, may still be among the seeds of a URL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.ports import HOST
from cluster.server import Server
from shardq import Engine
from shardq.errors import InvalidUrl, Unavailable
from tests.drivers.calls import store
from tests.drivers.carriers import Carriers
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def other(server_binary: Path) -> Iterator[Cluster]:
    """The cluster in which the retired node serves."""
    with Cluster(server_binary, masters=3) as cluster:
        yield cluster


@pytest.fixture
def ours(server_binary: Path) -> Iterator[Cluster]:
    with Cluster(server_binary, masters=3) as cluster:
        yield cluster


def seeds(*nodes: Server) -> str:
    return f"redis+cluster://{','.join(node.address for node in nodes)}"


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_new_process_is_told(carriers: Carriers, cluster: Cluster, other: Cluster, place: int) -> None:
    nodes = list(cluster.nodes[:3])
    nodes.insert(place, other.nodes[0])
    carrier = carriers.make(seeds(*nodes), connect_timeout=2.0)
    with pytest.raises(InvalidUrl, match="belong to 2 clusters") as caught:
        carrier.open()
    assert other.nodes[0].address in str(caught.value)
    assert "name nodes of one cluster only" in str(caught.value)


def test_no_engine_is_made_there(cluster: Cluster, other: Cluster, name: str) -> None:
    retired = other.nodes[0]
    with Engine(cluster.url, name=name, shards=2) as engine:
        engine.push("x", delay=1000)
    with pytest.raises(InvalidUrl, match="belong to 2 clusters"):
        Engine(seeds(retired, *cluster.nodes), name=name, shards=2, timeout=5).push("x")
    assert sum(int(node.ask("DBSIZE")) for node in other.nodes) == 0


def test_one_that_is_dead_beside_it(carriers: Carriers, ours: Cluster, name: str) -> None:
    """All seeds of one cluster, and some of them silent: that is as ever."""
    ours.nodes[0].pause()
    carrier = carriers.opened(seeds(*ours.nodes[1:], ours.nodes[0]), connect_timeout=60.0)
    assert len(carrier.nodes()) == 3
    assert carrier.node_of(0)


def test_a_running_process_stays_with_its_cluster(carriers: Carriers, ours: Cluster, other: Cluster, name: str) -> None:
    """One of its nodes is retired and joins another cluster. Then all the others are away for a while."""
    retired, *rest = [*ours.replicas, *ours.masters]
    carrier = carriers.opened(seeds(retired, *rest))
    masters = set(carrier.nodes())
    assert carrier.call(store(name, "a")) == 1
    retired.ask("CLUSTER", "RESET", "HARD")
    host = other.nodes[0]
    retired.ask("CLUSTER", "MEET", HOST, host.port, host.bus_port)
    wait_until(lambda: len(retired.ask("CLUSTER", "SLOTS")) == 3, "it serves in the other cluster")
    for node in rest:
        node.kill()
    with pytest.raises(Unavailable):
        carrier.call(store(name, "b"), timeout=2)
    with pytest.raises(Unavailable, match="in another cluster than the one used until now"):
        carrier.refresh()
    assert set(carrier.nodes()) == masters
    for node in rest:
        node.start()
    wait_until(lambda: carrier.call(store(name, "c"), timeout=30), "its own cluster is back")
    assert sum(int(node.ask("DBSIZE")) for node in other.nodes) == 0
