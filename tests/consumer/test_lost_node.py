"""A node of a cluster is lost: its shards give nothing until its replica takes over, and hold no other shard back."""

from __future__ import annotations

import time

import pytest

from cluster.cluster import Cluster
from shardq import Engine, Task, Unavailable
from shardq.layout.keys import shard_keys
from tests.support.engines import Engines
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

SHARDS = 12
TASKS = 120

AT_ONCE_S = 1.0
"""Far less than any failover takes, and than the engine's own timeout."""


@pytest.fixture
def engine(engines: Engines, own_cluster: Cluster, name: str) -> Engine:
    """With tasks ready on all nodes."""
    engine = engines.opened(own_cluster.url, name=name, shards=SHARDS, timeout=20.0)
    engine.start()
    engine.push_many([Task(n) for n in range(TASKS)])
    wait_until(lambda: engine.stats().ready == TASKS, "all are ready")
    return engine


def homes(engine: Engine, ids: list[str]) -> set[int]:
    return {engine.topology.shard_of(id) for id in ids}


def test_the_others_give_what_they_have(
    engine: Engine, own_cluster: Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    slots = [shard_keys(name, shard).slot for shard in range(SHARDS)]
    victim = own_cluster.node_of_slot(slots[0])
    lost = {shard for shard, slot in enumerate(slots) if own_cluster.node_of_slot(slot) is victim}
    consumer = engine.consumer(lease=600)
    first = consumer.claim(12)
    victim.kill()
    began = time.monotonic()
    rest = [*consumer.claim(TASKS), *consumer.claim(TASKS, wait=0.2)]
    assert time.monotonic() - began < AT_ONCE_S
    expected = {shard for shard in range(SHARDS) if shard not in lost}
    assert homes(engine, [delivery.id for delivery in rest]) == expected

    # one that waits is woken by what becomes ready elsewhere
    began = time.monotonic()
    elsewhere = next(id for n in range(99) if engine.topology.shard_of(id := f"mine-{n}") in expected)
    engine.push("x", id=elsewhere, delay=0.3)
    (delivery,) = consumer.claim(1, wait=10.0)
    assert delivery.id == elsewhere
    assert time.monotonic() - began < 0.3 + AT_ONCE_S

    # and when the replica has taken over, all is there
    taken = {delivery.id for delivery in [*first, *rest, delivery]}
    while len(taken) < TASKS + 1:
        found = consumer.claim(TASKS, wait=20.0)
        assert found, "the replica gives the others"
        taken |= {delivery.id for delivery in found}
    assert [record.levelname for record in caplog.records if "claiming from the others" in record.message] == [
        "WARNING"
    ]


def test_when_none_is_left_it_says_so(engines: Engines, own_cluster: Cluster, name: str) -> None:
    engine = engines.opened(own_cluster.url, name=name, shards=SHARDS, timeout=1.0)
    engine.push("x", delay=FAR_S)
    consumer = engine.consumer()
    for node in own_cluster.nodes:
        node.kill()
    for _ in range(2):
        with pytest.raises(Unavailable):
            consumer.claim(10)
