"""A cluster whose nodes speak TLS only, also to each other, does all that a cluster does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import ServerFailed
from shardq import Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.slots import slot_of
from tests.drivers.calls import command, key_in
from tests.drivers.carriers import Carriers
from tests.support import certificates
from tests.support.engines import Engines
from tests.support.states import claim
from tests.support.waiting import wait_until

SHARDS = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificates.made(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def cluster(files: Path) -> Iterator[Cluster]:
    """Three masters; the first has a replica, so that it can be lost."""
    binary = certificates.binary()
    options = {"appendonly": "yes", "appendfsync": "no"}
    try:
        tls = certificates.of_server(files)
        # nobody is taken for dead because the machine was busy with handshakes
        with Cluster(binary, masters=3, replicas=0, node_timeout_ms=5000, options=options, tls=tls) as cluster:
            cluster.add_node(replica_of=cluster.nodes[0])
            yield cluster
    except ServerFailed as exc:
        pytest.skip(f"{binary} makes no cluster with TLS: {exc}")


@pytest.fixture
def engine(engines: Engines, cluster: Cluster, files: Path, name: str) -> Engine:
    seeds = ",".join(node.address for node in cluster.masters)
    return engines.opened(url(seeds, files), name=name, shards=SHARDS, timeout=30.0)


def url(seeds: str, files: Path) -> str:
    return f"rediss+cluster://{seeds}?ca={files}/ca.pem&cert={files}/client.pem&key={files}/client.key"


@pytest.mark.slow
def test_tasks_come_through(engine: Engine) -> None:
    engine.start()
    ids = [engine.push(f"one {n}", delay=0.1) for n in range(20)]
    ids += engine.push_many([Task(f"many {n}" * 1000) for n in range(300)])
    consumer = engine.consumer()
    given = claim(consumer, len(ids))
    assert sorted(delivery.id for delivery in given) == sorted(ids)
    consumer.ack(given)
    wait_until(lambda: engine.health().ok, "all are well")
    health = engine.health()
    stats = health.stats
    assert len({shard.node for shard in stats.shards}) == 3
    assert (stats.ready, stats.leased, health.warnings) == (0, 0, [])


def test_one_seed_is_enough_and_a_wrong_one_is_passed_over(
    engines: Engines, cluster: Cluster, files: Path, name: str
) -> None:
    engine = engines.opened(url(f"127.0.0.1:1,{cluster.masters[1].address}", files), name=name, shards=SHARDS)
    assert len(engine.push_many([Task(n) for n in range(60)])) == 60
    assert engine.stats().scheduled == 60


@pytest.mark.slow
def test_while_a_slot_moves(engine: Engine, cluster: Cluster) -> None:
    """TRYAGAIN until it has moved, and MOVED from then on."""
    slot = shard_keys(engine.name, 0).slot
    source = cluster.node_of_slot(slot)
    target = next(node for node in cluster.masters if node is not source)
    engine.start()
    ids = engine.push_many([Task(n, delay=0.2) for n in range(60)])
    move = cluster.begin_move(slot, target)
    move.carry(1)
    with ThreadPoolExecutor(1) as threads:
        pushing = threads.submit(engine.push_many, [Task(n) for n in range(60)])
        move.finish()
        ids += pushing.result()
    ids += engine.push_many([Task(n, delay=0.1) for n in range(60)])
    consumer = engine.consumer()
    given = claim(consumer, len(ids))
    assert sorted(delivery.id for delivery in given) == sorted(ids)
    consumer.ack(given)
    assert engine.stats().shards[0].node == target.address
    cluster.wait_ok()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "aio"])
def test_a_key_that_went_ahead_of_its_slot(cluster: Cluster, files: Path, name: str, kind: str) -> None:
    """ASK, to a node that the driver has no connection to yet."""
    carriers = Carriers(kind)
    try:
        carrier = carriers.opened(url(cluster.masters[0].address, files))
        key = key_in(name, range(200, 5000))
        carrier.call(command(key, "SET", key, "1"))
        source = cluster.node_of_slot(slot_of(key))
        move = cluster.begin_move(slot_of(key), next(node for node in cluster.masters if node is not source))
        assert move.carry()
        assert carrier.call(command(key, "GET", key)) == b"1"
        assert carrier.node_of(slot_of(key)) == source.address
        move.finish()
        assert carrier.call(command(key, "GET", key)) == b"1"
        assert carrier.node_of(slot_of(key)) == move.target.address
    finally:
        carriers.end()


@pytest.mark.slow
def test_a_master_that_is_lost(engines: Engines, cluster: Cluster, files: Path, name: str) -> None:
    """Its replica takes over; the engine finds it by what the others say."""
    seeds = ",".join(node.address for node in cluster.masters)
    engine = engines.opened(url(seeds, files), name=name, shards=SHARDS, timeout=60.0)
    engine.start()
    (replica,) = cluster.replicas
    lost = next(node for node in cluster.masters if cluster.replicas_of(node))
    ids = engine.push_many([Task(n, delay=1) for n in range(200)])
    written = lost.ask("INFO", "replication")["master_repl_offset"]
    wait_until(lambda: replica.ask("INFO", "replication")["slave_repl_offset"] >= written, "the replica is in step")
    lost.kill()
    assert cluster.wait_promoted(lost) is replica
    ids += engine.push_many([Task(n) for n in range(200)])
    consumer = engine.consumer()
    given = claim(consumer, len(ids))
    assert {delivery.id for delivery in given} == set(ids)
    consumer.ack(given)
    assert replica.address in {shard.node for shard in engine.stats().shards}
    engine.close()
    lost.restart()
    cluster.wait_ok()
