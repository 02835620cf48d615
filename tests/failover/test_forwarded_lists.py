"""A list in another slot is on another master: a task that is settled there is on the replicas of that master, too."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from cluster.cluster import Cluster
from cluster.node import Node
from shardq import Engine, Task
from shardq.core.layout.slots import slot_of
from tests.support.servers import keys_of
from tests.support.states import counted
from tests.support.waiting import wait_until

PROMOTED_S = 75.0

TASKS = 600  # more than a batch of the forwarder

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def engine(own_cluster: Cluster, name: str) -> Iterator[Engine]:
    with Engine(own_cluster.url, name=name, shards=1, timeout=PROMOTED_S + 15) as engine:
        engine.start()
        yield engine


def settled(engine: Engine) -> bool:
    stats = counted(engine)
    return stats.scheduled + stats.ready + stats.leased == 0


@pytest.fixture
def elsewhere(own_cluster: Cluster, name: str) -> tuple[str, Node, Node]:
    """A list on another master than the engine's only shard, that master, and its replica."""
    source = own_cluster.node_of_slot(keys_of(name, 1)[0].slot)
    lists = (f"mine:{name}:{number}" for number in itertools.count())
    to = next(to for to in lists if own_cluster.node_of_slot(slot_of(to)) is not source)
    master = own_cluster.node_of_slot(slot_of(to))
    (replica,) = own_cluster.replicas_of(master)
    return to, master, replica


@pytest.mark.parametrize("way", ["list", "stream"])
def test_what_the_promoted_replica_lacks_is_not_settled(
    engine: Engine, own_cluster: Cluster, elsewhere: tuple[str, Node, Node], way: str
) -> None:
    to, master, replica = elsewhere
    engine.forward("mail", to=to if way == "list" else f"stream:{to}")
    engine.push("first", topic="mail")
    wait_until(lambda: settled(engine), "the first is settled")
    replica.pause()
    try:
        # it could still read what was sent to it
        master.ask("CLIENT", "KILL", "TYPE", "replica")
        engine.push_many([Task(n, topic="mail") for n in range(TASKS)])
        wait_until(lambda: engine.stats().failing_routes or settled(engine), "the forwarder has met the master")
        master.kill()
    finally:
        replica.resume()
    assert own_cluster.wait_promoted(master, timeout=PROMOTED_S) is replica
    wait_until(lambda: settled(engine), "all are settled", timeout=PROMOTED_S)
    assert replica.ask("LLEN" if way == "list" else "XLEN", to) >= TASKS + 1
    wait_until(lambda: engine.stats().failing_routes == (), "the route works")


def test_a_batch_is_not_appended_again_while_its_replica_lags(
    engine: Engine, elsewhere: tuple[str, Node, Node]
) -> None:
    to, master, replica = elsewhere
    engine.forward("mail", to=to)
    engine.push("first", topic="mail")
    wait_until(lambda: settled(engine), "the first is settled")
    replica.pause()
    try:
        engine.push_many([Task(n, topic="mail") for n in range(20)])
        wait_until(lambda: engine.stats().failing_routes, "the route waits for the replica")
        waits = int(master.ask("INFO", "commandstats")["cmdstat_wait"]["calls"])
        wait_until(lambda: master.ask("INFO", "commandstats")["cmdstat_wait"]["calls"] > waits, "it is tried again")
    finally:
        replica.resume()
    wait_until(lambda: settled(engine), "all are settled")
    assert master.ask("LLEN", to) == 21
    wait_until(lambda: engine.stats().failing_routes == (), "the route works")
