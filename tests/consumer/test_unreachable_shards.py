"""Shards whose node is lost give nothing until its replica takes over, and hold up no other shard."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.node import Node
from cluster.server import Server
from shardq import AsyncEngine, Engine, ServerFault, Task, Unanswered, Unavailable
from shardq.core.layout.keys import shard_keys
from shardq.errors import SettleError
from tests.support.engines import Engines
from tests.support.proxies import Proxy
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SHARDS = 12
EACH = 10
TASKS = EACH * SHARDS

AT_ONCE_S = 5.0
"""Far less than the engine's own timeout, and than the 8 s after which a waiter looks by itself at the earliest; a part
of a second on an idle machine.
"""


@pytest.fixture
def cluster(server_binary: Path) -> Iterator[Cluster]:
    """A cluster of the test's own, which fails over when it is told to."""
    with Cluster(server_binary, masters=3, replicas=1, node_timeout_ms=120_000) as cluster:
        yield cluster


@pytest.fixture
def engine(engines: Engines, cluster: Cluster, name: str) -> Engine:
    """With as many tasks ready in each shard."""
    engine = engines.opened(cluster.url, name=name, shards=SHARDS, timeout=20.0)
    engine.start()
    engine.push_many([Task(n, id=id) for shard in range(SHARDS) for n, id in enumerate(ids_of(engine, shard, EACH))])
    wait_until(lambda: engine.stats().ready == TASKS, "all are ready")
    return engine


def ids_of(engine: Engine, shard: int, number: int) -> list[str]:
    """So many ids of one shard."""
    found: list[str] = []
    numbers = count()
    while len(found) < number:
        id = f"mine-{next(numbers)}"
        if engine.topology.shard_of(id) == shard:
            found.append(id)
    return found


def take_over(cluster: Cluster, victim: Node) -> None:
    """The replica of a node that was killed takes its place, without asking the others."""
    (replica,) = [node for node in cluster.replicas if node.group == victim.group]
    replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
    cluster.wait_promoted(victim)


def in_step(cluster: Cluster, master: Node) -> bool:
    """Whether the replica has all that its master has written."""
    written = master.ask("INFO", "replication")["master_repl_offset"]
    return all(node.ask("INFO", "replication")["slave_repl_offset"] >= written for node in cluster.replicas_of(master))


def homes(engine: Engine, ids: list[str]) -> set[int]:
    return {engine.topology.shard_of(id) for id in ids}


def test_the_others_give_what_they_have(
    engine: Engine, cluster: Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    slots = [shard_keys(name, shard).slot for shard in range(SHARDS)]
    victim = cluster.node_of_slot(slots[0])
    lost = {shard for shard, slot in enumerate(slots) if cluster.node_of_slot(slot) is victim}
    expected = {shard for shard in range(SHARDS) if shard not in lost}
    assert expected
    consumer = engine.consumer(lease=600)
    first = consumer.claim(12)
    assert max(Counter(delivery.shard for delivery in first).values()) < EACH, "all shards have some left"
    wait_until(lambda: in_step(cluster, victim), "the replica has everything")
    victim.kill()
    began = time.monotonic()
    rest = [*consumer.claim(TASKS), *consumer.claim(TASKS, wait=0.2)]
    assert time.monotonic() - began < AT_ONCE_S
    assert homes(engine, [delivery.id for delivery in rest]) == expected

    # one that waits is woken by what becomes ready elsewhere
    began = time.monotonic()
    elsewhere = ids_of(engine, min(expected), EACH + 1)[-1]
    engine.push("x", id=elsewhere, delay=0.3)
    (delivery,) = consumer.claim(1, wait=10.0)
    assert delivery.id == elsewhere
    assert time.monotonic() - began < 0.3 + AT_ONCE_S
    assert [record.levelname for record in caplog.records if "claiming from the others" in record.message] == [
        "WARNING"
    ]

    # and when the replica has taken over, all is there
    notes = {delivery.id for delivery in [*first, *rest, delivery]}
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(consumer.claim, TASKS, wait=20.0)
        take_over(cluster, victim)
        notes |= {delivery.id for delivery in waiting.result()}
    while len(notes) < TASKS + 1:
        found = consumer.claim(TASKS, wait=20.0)
        assert found, "the replica gives the others"
        notes |= {delivery.id for delivery in found}


def test_what_the_others_gave_to_a_claim_that_is_cancelled_goes_back(cluster: Cluster, name: str) -> None:
    """At once, although one of the nodes says nothing."""
    with Engine(cluster.url, name=name, shards=SHARDS) as filling:
        filling.start()
        filling.push_many([Task(n, max_attempts=1) for n in range(TASKS)])
        wait_until(lambda: filling.stats().ready == TASKS, "all are ready")
        filling.stop()
    keys = [shard_keys(name, shard) for shard in range(SHARDS)]
    victim = cluster.node_of_slot(keys[0].slot)
    others = [each for each in keys if cluster.node_of_slot(each.slot) is not victim]
    with Servers(cluster.url) as servers:

        def leased() -> int:
            return sum(int(servers.ask(each.slot, "ZCARD", each.leased)) for each in others)

        async def run() -> None:
            async with AsyncEngine(cluster.url, name=name, timeout=60.0) as engine:
                await engine.consumer("other").claim(1)
                victim.pause()
                task = asyncio.create_task(engine.consumer(lease=3600).claim(TASKS))
                await asyncio.to_thread(wait_until, lambda: leased() > 0, "some have given what they have")
                task.cancel()
                began = time.monotonic()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert time.monotonic() - began < AT_ONCE_S
                await asyncio.to_thread(wait_until, lambda: leased() == 0, "it is given back")
            # no attempt is counted
            scheduled = sum(int(servers.ask(each.slot, "ZCARD", each.due)) for each in others)
            ready = sum(int(servers.ask(each.slot, "LLEN", each.ready(""))) for each in others)
            dead = sum(int(servers.ask(each.slot, "ZCARD", each.dead)) for each in others)
            assert scheduled > 0
            assert (scheduled + ready, dead) == (expected, 0)

        expected = sum(int(servers.ask(each.slot, "LLEN", each.ready(""))) for each in others)
        try:
            asyncio.run(run())
        finally:
            victim.resume()


def test_settling_many_tells_which_are_done(engines: Engines, cluster: Cluster, name: str) -> None:
    engine = engines.opened(cluster.url, name=name, shards=SHARDS, timeout=3.0)
    engine.start()
    engine.push_many([Task(n, id=id) for shard in range(SHARDS) for n, id in enumerate(ids_of(engine, shard, 3))])
    wait_until(lambda: engine.stats().ready == 3 * SHARDS, "all are ready")
    consumer = engine.consumer(lease=600)
    deliveries = claim(consumer, 3 * SHARDS)
    engine.stop()
    keys = [shard_keys(name, shard) for shard in range(SHARDS)]
    victim = cluster.node_of_slot(keys[0].slot)
    lost = {d.id for d in deliveries if cluster.node_of_slot(keys[d.shard].slot) is victim}
    held = [d for d in deliveries if d.id not in lost]
    consumer.ack(held[0])
    victim.kill()
    with pytest.raises(SettleError) as caught:
        consumer.ack(deliveries)
    assert set(caught.value.settled) == {d.id for d in held[1:]}
    assert caught.value.lost == [held[0].id]
    assert {*caught.value.failed, *caught.value.unknown} == lost
    # where nothing is done there is nothing to tell apart
    with pytest.raises(ServerFault) as simple:
        consumer.ack([d for d in deliveries if d.id in lost])
    assert type(simple.value) in (Unavailable, Unanswered)


def test_what_one_consumer_finds_unreachable_none_of_the_others_looks_for(
    engines: Engines, cluster: Cluster, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.opened(cluster.url, name=name, shards=SHARDS, timeout=20.0)
    consumers = [engine.consumer() for _ in range(10)]
    for consumer in consumers:
        consumer.claim(TASKS)
    cluster.node_of_slot(shard_keys(name, 0).slot).kill()
    for consumer in consumers:
        consumer.claim(TASKS)
    said = [record.message for record in caplog.records if record.name == "shardq.consumer"]
    assert len(said) == 1, said


def test_the_only_server_is_given_time_to_connect(single: Server, engines: Engines, name: str) -> None:
    """A pipeline to several servers gives each a second, so that the others' calls do not wait."""
    address = single.url.removeprefix("redis://")
    with Proxy(address) as proxy:
        engine = engines.opened(proxy.url, name=name, shards=4)
        engine.push_many([Task(n) for n in range(TASKS)])
        engine.start()
        wait_until(lambda: engine.stats().ready == TASKS, "all are ready")
        engine.stop()
        # the connections that are open go, and each answer of the next hand-shake is late
        proxy.delay_s = 0.6
        proxy.drop()
        consumer = engine.consumer()
        assert len(claim(consumer, TASKS)) == TASKS
        assert not consumer._claims.unreachable.again_at


def test_when_none_is_left_it_says_so(engines: Engines, cluster: Cluster, name: str) -> None:
    engine = engines.opened(cluster.url, name=name, shards=SHARDS, timeout=3.0)
    engine.push("x", delay=FAR_S)
    consumer = engine.consumer()
    for node in cluster.nodes:
        node.kill()
    for _ in range(2):
        with pytest.raises(Unavailable):
            consumer.claim(10)
