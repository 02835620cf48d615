"""What stats() says of replicas: how much could be lost if one took over now."""

from __future__ import annotations

import pytest

from cluster.cluster import Cluster
from shardq import Engine, Task
from tests.support.states import FAR_S
from tests.support.waiting import wait_until


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_without_a_replica(url: str, name: str) -> None:
    with Engine(url, name=name) as engine:
        ((node, seen),) = engine.stats().replication.items()
        assert node in url
        assert (seen.replicas, seen.unconfirmed) == (0, None)


def test_a_replica_that_falls_behind(own_cluster: Cluster, name: str) -> None:
    with Engine(own_cluster.url, name=name, shards=6) as engine:
        master = own_cluster.masters[0]
        (replica,) = own_cluster.replicas_of(master)
        assert {each.replicas for each in engine.stats().replication.values()} == {1}
        wait_until(lambda: engine.stats().replication[master.address].unconfirmed == 0, "it is in step")
        replica.pause()
        engine.push_many([Task("x" * 100, delay=FAR_S) for _ in range(600)])
        behind = engine.stats().replication[master.address].unconfirmed
        assert behind is not None
        assert behind > 600 / 3 * 100 / 2
        replica.resume()
        wait_until(lambda: engine.stats().replication[master.address].unconfirmed == 0, "it is in step again")
