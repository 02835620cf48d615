"""Servers that restart, forget their scripts, move slots and die under a steady flow: nothing is lost, and no error
reaches a caller that waiting could solve."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.node import Node
from cluster.server import Server
from shardq import Conflict, Delivery, Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.model.checks import OnConflict
from tests.support.engines import SHARDS
from tests.support.flow import flowing
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS) as engine:
        engine.start()
        yield engine


def test_scripts_that_are_forgotten(engine: Engine, servers: Servers) -> None:
    with flowing(engine) as flow:
        for round in range(40):
            wait_until(lambda: len(flow.done) > round * 200, "the flow goes on")  # noqa: B023  called at once
            servers.ask_all("SCRIPT", "FLUSH")
    wait_until(lambda: engine.health().ok, "every poller is well")


def test_a_server_that_restarts(own_server: Server, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with Engine(own_server.url, name=name, shards=SHARDS) as engine:
        engine.start()
        with flowing(engine) as flow:
            for _ in range(3):
                so_far = len(flow.done)
                wait_until(lambda: len(flow.done) > so_far + 1000, "the flow goes on", timeout=30)  # noqa: B023
                flow.check()
                own_server.restart()
        wait_until(lambda: engine.health().ok, "every poller is well")
    # said once an outage, neither once a step nor once a shard: an error, and then that it is over
    said = [record.getMessage() for record in caplog.records if record.name == "shardq.outages"]
    bad = [text.startswith(f"{own_server.address} fails, ") for text in said]
    assert bad == [n % 2 == 0 for n in range(len(bad))], said
    assert len(bad) % 2 == 0, said
    assert sum(bad) == sum(record.levelno >= logging.ERROR for record in caplog.records)


def slots_of(name: str) -> list[int]:
    return [shard_keys(name, shard).slot for shard in range(SHARDS)]


@pytest.fixture
def calm_cluster(server_binary: Path) -> Iterator[Cluster]:
    """A cluster for one test alone, where no master loses its place by standing still."""
    with Cluster(server_binary, masters=3, replicas=1, node_timeout_ms=30_000) as cluster:
        yield cluster


def goes_its_way(engine: Engine, *, beside: int) -> bool:
    """A task is pushed, dispatched, claimed and acknowledged in another shard than this."""
    id = next(id for n in range(999) if engine.topology.shard_of(f"beside/{(id := f'mine-{n}')}") != beside)
    receipt = engine.push("x", id=id, topic="beside")
    consumer = engine.consumer("beside")
    (delivery,) = claim(consumer, 1)
    consumer.ack(delivery)
    return delivery.id == receipt


def test_slots_that_move(calm_cluster: Cluster, name: str) -> None:
    with Engine(calm_cluster.url, name=name, shards=SHARDS, timeout=30.0) as engine:
        engine.start()
        with flowing(engine) as flow:
            for shard, slot in [*enumerate(slots_of(name))] * 2:
                target = next(node for node in calm_cluster.masters if node is not calm_cluster.node_of_slot(slot))
                move = calm_cluster.begin_move(slot, target)
                # half open: some keys here, some there, and every script on the shard has to wait
                move.carry(2)
                # not to be seen by the flow: its consumer may have something of this shard to acknowledge
                assert goes_its_way(engine, beside=shard)
                so_far = len(flow.done)
                move.finish()
                wait_until(lambda: len(flow.done) > so_far + 100, "the flow goes on", timeout=30)  # noqa: B023
                flow.check()
        stats = engine.stats()
        assert {shard.shard: shard.node for shard in stats.shards} == {
            n: calm_cluster.node_of_slot(slot).address for n, slot in enumerate(slots_of(name))
        }
        wait_until(lambda: engine.health().ok, "every poller is well")
        # and the subscriber moved along: no poller sleeps unsubscribed
        assert_prompt(engine)


def assert_prompt(engine: Engine) -> None:
    """What is pushed is dispatched at once, in every shard."""
    consumer = engine.consumer()

    def prompt() -> bool:
        ids = {str(id) for id in engine.push_many([Task(n) for n in range(8 * SHARDS)])}
        engine.push_many([Task(n, delay=FAR_S) for n in range(SHARDS)])
        deliveries: list[Delivery] = []
        # what an earlier try left comes too
        while not ids <= {delivery.id for delivery in deliveries}:
            some = consumer.claim(1000, wait=0.1)
            if not some:
                break
            deliveries += some
        consumer.ack(deliveries)
        return {delivery.id for delivery in deliveries} >= ids

    wait_until(prompt, "all shards are dispatched within 0.1 s of a push")


def in_step(master: Node) -> bool:
    """Its replicas have all that it has."""
    _, offset, replicas = master.ask("ROLE")
    return bool(replicas) and all(int(told) == int(offset) for _, _, told in replicas)


def test_a_master_that_dies(own_cluster: Cluster, name: str) -> None:
    with Engine(own_cluster.url, name=name, shards=SHARDS, timeout=30.0) as engine:
        engine.start()
        pushed = engine.push_many([Task(n, delay=3 + n % 30 / 10) for n in range(2000)])
        lost = own_cluster.node_of_slot(slots_of(name)[0])
        # replication is asynchronous: what a failover may lose is not what this is about
        wait_until(lambda: in_step(lost), "the replica has everything")
        lost.kill()
        pushed += engine.push_many([Task(n) for n in range(2000)])  # waits for the promotion
        own_cluster.wait_promoted(lost)
        pushed += engine.push_many([Task(n) for n in range(2000)])
        consumer = engine.consumer(lease=60)
        done: set[str] = set()

        def take() -> None:
            deliveries = consumer.claim(500, wait=0.05)
            consumer.ack(deliveries)
            done.update(delivery.id for delivery in deliveries)

        def all_done() -> bool:
            take()
            return done >= set(pushed)

        wait_until(all_done, "all that was pushed is done", timeout=30)
        assert done == set(pushed)
        stats = engine.stats()
        assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
        assert lost.address not in {shard.node for shard in stats.shards}
        assert_prompt(engine)
        wait_until(lambda: _all_run(engine), "every poller is well")  # the cluster still has a node that failed


def _all_run(engine: Engine) -> bool:
    return all(shard.poller == "running" for shard in engine.stats().shards)


def test_a_start_waits_out_an_outage(own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=SHARDS, timeout=30.0) as engine:
        own_server.kill()
        starting = threading.Timer(1.5, own_server.start)  # longer than a heartbeat's patience
        starting.start()
        engine.start()
        starting.join()
        assert_prompt(engine)


@pytest.mark.parametrize("on_conflict", ["keep", "reject", "replace"])
def test_a_push_that_never_arrived_is_not_taken_for_an_equal_one(
    own_server: Server, name: str, on_conflict: OnConflict
) -> None:
    """The server stops, takes no more than the bytes of the push, and dies with them; the resend meets a task that was
    pushed before, equal but for its due time."""
    with Engine(own_server.url, name=name, shards=1, timeout=30.0) as engine:
        first = engine.push("x", id="a", delay=FAR_S)
        before = engine.get(first)
        own_server.pause()

        def die() -> None:
            own_server.kill()
            own_server.start()

        dying = threading.Timer(0.5, die)
        dying.start()
        try:
            if on_conflict == "reject":
                with pytest.raises(Conflict, match="already scheduled"):
                    engine.push("x", id="a", delay=2 * FAR_S, on_conflict=on_conflict)
            else:
                second = engine.push("x", id="a", delay=2 * FAR_S, on_conflict=on_conflict)
                assert second.outcome == {"keep": "kept", "replace": "replaced"}[on_conflict]
        finally:
            dying.join()
        after = engine.get(first)
        assert before is not None
        assert after is not None
        assert (after.due == before.due) is (on_conflict != "replace")
