"""stats() tells how many bytes of writes would be lost if a replica took over now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def calm_cluster(server_binary: Path) -> Iterator[Cluster]:
    """Whose nodes are not failed over because they are busy. A PING counts as written until the next second, so one a
    second could keep a replica from ever being seen in step."""
    options = {"repl-ping-replica-period": "10"}
    with Cluster(server_binary, masters=3, replicas=1, node_timeout_ms=15_000, options=options) as cluster:
        yield cluster


@pytest.mark.slow
def test_a_replica_that_falls_behind(calm_cluster: Cluster, name: str) -> None:
    with Engine(calm_cluster.url, name=name, shards=6) as engine:
        master = calm_cluster.masters[0]
        (replica,) = calm_cluster.replicas_of(master)
        assert {each.replicas for each in engine.stats().replication.values()} == {1}
        wait_until(lambda: engine.stats().replication[master.address].unconfirmed == 0, "it is in step")
        replica.pause()
        engine.push_many([Task("x" * 100, delay=FAR_S) for _ in range(600)])
        behind = engine.stats().replication[master.address].unconfirmed
        assert behind is not None
        assert behind > 600 / 3 * 100 / 2
        replica.resume()
        wait_until(lambda: engine.stats().replication[master.address].unconfirmed == 0, "it is in step again")
