"""A server that is silent holds up no delivery that others have given, and no delivery is handed out when its lease may
be over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Delivery, Engine, Task
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.operation import run
from shardq.delivery.linger import Linger
from shardq.engine.access import EngineAccess
from shardq.worker.base import plan_of
from tests.support.engines import Engines
from tests.support.proxies import Proxy
from tests.support.waiting import wait_until

SHARDS = 12
EACH = 30
LEASE_S = 8.0
AT_ONCE_S = 4.0
"""Half of the lease; an eighth is what a silent server has."""


@pytest.fixture
def engine(engines: Engines, lasting_cluster: Cluster, name: str) -> Iterator[Engine]:
    """With as many tasks ready in each shard."""
    engine = engines.opened(lasting_cluster.url, name=name, shards=SHARDS, timeout=20.0)
    engine.start()
    yield engine
    engine.close()


def fill(engine: Engine) -> None:
    left = dict.fromkeys(range(SHARDS), EACH)
    tasks = []
    for number in count():
        shard = engine.topology.shard_of(id := f"mine-{number}")
        if left[shard]:
            left[shard] -= 1
            tasks.append(Task(number, id=id))
        if not any(left.values()):
            break
    engine.push_many(tasks)
    wait_until(lambda: engine.stats().ready == SHARDS * EACH, "all are ready")


@pytest.fixture
def silent(engine: Engine, lasting_cluster: Cluster, name: str) -> Iterator[set[int]]:
    """The shards of a master that was frozen when all tasks were ready."""
    fill(engine)
    slots = [shard_keys(name, shard).slot for shard in range(SHARDS)]
    victim = lasting_cluster.node_of_slot(slots[0])
    victim.pause()
    yield {shard for shard, slot in enumerate(slots) if lasting_cluster.node_of_slot(slot) is victim}
    victim.resume()


def timed(claim: Callable[[], list[Delivery]]) -> tuple[list[Delivery], float]:
    began = time.monotonic()
    return claim(), time.monotonic() - began


@pytest.mark.parametrize("prefetch", [False, True], ids=["", "ahead"])
@pytest.mark.parametrize("wait", [0.0, 5.0])
def test_what_others_give_is_handed_out_at_once(engine: Engine, silent: set[int], prefetch: bool, wait: float) -> None:
    consumer = engine.consumer(lease=LEASE_S, prefetch=prefetch)
    expected = EACH * (SHARDS - len(silent))
    got: list[Delivery] = []
    while len(got) < expected:
        deliveries, took = timed(lambda: consumer.claim(100, wait=wait))
        assert took < AT_ONCE_S
        got += deliveries
        consumer.ack(deliveries)  # none of them is lost
    assert silent.isdisjoint(delivery.shard for delivery in got)
    assert all(delivery.attempt == 1 for delivery in got)
    consumer.close()


@pytest.mark.parametrize("wait", [0.0, 5.0])
def test_permits_of_a_limited_topic_hold_up_no_delivery(
    engine: Engine, lasting_cluster: Cluster, name: str, wait: float
) -> None:
    """The control slot, which gives out permits, is silent when tasks of another topic were claimed already."""
    engine.limit("mail", concurrency=3)
    engine.push_many([Task(n, topic=topic) for n in range(100) for topic in ("", "mail")])
    wait_until(lambda: engine.stats().ready == 200, "all are ready")
    control = control_keys(name).slot
    shards = {shard_keys(name, shard).slot for shard in range(SHARDS)}
    victim = lasting_cluster.node_of_slot(control)
    assert any(lasting_cluster.node_of_slot(slot) is not victim for slot in shards)
    consumer = engine.consumer(["", "mail"], lease=LEASE_S)
    (first,) = consumer.claim(1)
    consumer.ack(first)
    victim.pause()
    try:
        deliveries, took = timed(lambda: consumer.claim(150, wait=wait))
        assert took < AT_ONCE_S
        assert deliveries
        consumer.ack(deliveries)  # none of them is lost
    finally:
        victim.resume()


def test_a_worker_goes_on_with_the_others(engines: Engines, engine: Engine, silent: set[int]) -> None:
    worker = engine.worker(lease=LEASE_S, topics=[""])
    attempts: list[int] = []

    @worker.on("")
    def handle(delivery: Delivery) -> None:
        attempts.append(delivery.attempt)

    with engines.working(worker):
        wait_until(lambda: len(attempts) >= EACH * (SHARDS - len(silent)), "all that can be claimed is handled")
    assert set(attempts) == {1}


def test_what_has_lapsed_is_not_handed_out(engines: Engines, own_server: Server, name: str) -> None:
    with Proxy(own_server.address) as proxy:
        engine = engines.opened(own_server.url, name=name, shards=1, timeout=20.0)
        engine.start()
        engine.push_many([Task(n) for n in range(5)])
        wait_until(lambda: engine.stats().ready == 5, "all are ready")
        far = engines.opened(proxy.url, name=name, shards=1, timeout=20.0)
        consumer = far.consumer(lease=1.0)
        proxy.delay_s = 1.2
        assert consumer.claim(5) == []
        proxy.mend()
        wait_until(lambda: len(consumer.claim(5)) == 5, "they come again")
        engines.close()


@pytest.fixture
def own(lasting_cluster: Cluster, name: str) -> Iterator[Engine]:
    """One that knows of no silent server. It is opened before: the one that goes silent may be that of its topology."""
    with Engine(lasting_cluster.url, name=name, shards=SHARDS, timeout=20.0) as own:
        yield own


def test_a_handler_of_batches_that_lingers_looks_at_the_others(own: Engine, engine: Engine, silent: set[int]) -> None:
    """Also at the first look, before anybody knows which server is silent."""
    worker = own.worker(lease=LEASE_S, topics=[""])
    worker.on("", batch=1000, linger=5)(lambda batch: None)
    internals = EngineAccess(own)
    driver, claims = internals.open_driver(), internals.planned_claims(plan_of(worker))
    linger = Linger(driver, claims, lambda _: None, size=1000, linger_s=5)  # type: ignore[arg-type, return-value]  # it waits for nothing here
    for _ in range(2):
        began = time.monotonic()
        assert run(driver, linger._left_s(began), 20.0) is not None, "others have something"
        assert time.monotonic() - began < AT_ONCE_S
    assert claims.unreachable.again_at.keys() == silent
