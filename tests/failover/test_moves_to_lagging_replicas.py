"""Tasks that move to a master whose replica lags stay confirmed if they were confirmed before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.cluster import Cluster
from shardq import Engine, Task
from shardq.core.layout.topology import Topology
from tests.support.servers import keys_of
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

SHARDS = 6

TASKS = 400

PROMOTED_S = 75.0

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def engine(own_cluster: Cluster, name: str) -> Iterator[Engine]:
    with Engine(own_cluster.url, name=name, shards=1, timeout=PROMOTED_S + 15) as engine:
        yield engine


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "back"])
def test_a_replica_that_is_behind(engine: Engine, own_cluster: Cluster, name: str, lost: bool) -> None:
    """Nothing is moved to its master, and all goes on elsewhere; until it is back, or has taken over without what it
    missed."""
    ids = engine.push_many([Task(n, delay=FAR_S) for n in range(TASKS)], durability="replicated")
    keys = keys_of(name, SHARDS)
    source = own_cluster.node_of_slot(keys[0].slot)
    master, other = (own_cluster.node_of_slot(keys[shard].slot) for shard in (3, 1))
    assert len({source, master, other}) == 3
    (replica,) = own_cluster.replicas_of(master)
    homes = Topology(epoch=1, shards=SHARDS).shards_of(ids)
    replica.pause()
    # it could still read what was sent to it
    master.ask("CLIENT", "KILL", "TYPE", "replica")
    try:
        engine.resize(SHARDS)
        engine.start()
        wait_until(lambda: other.ask("HLEN", keys[1].task) == homes.count(1), "the tasks of another shard have moved")
        wait_until(lambda: source.ask("HLEN", keys[0].moved) == 0, "nothing is on its way")
        if lost:
            master.kill()
    finally:
        replica.resume()
    if lost:
        assert own_cluster.wait_promoted(master, timeout=PROMOTED_S) is replica
    assert engine.resize(dry_run=True).wait(PROMOTED_S)
    assert [id for id in ids if engine.get(id) is None] == []
    assert engine.stats().scheduled == TASKS
