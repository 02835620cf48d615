"""A shard that is silent holds up no settlement of the others; its own are sent again until it has them."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from cluster.cluster import Cluster
from shardq import Delivery, Task
from shardq.core.layout.keys import shard_keys
from tests.support.engines import Engines
from tests.support.states import counted
from tests.support.waiting import wait_until

SHARDS = 6
COUNT = 60
AT_ONCE_S = 8.0
"""A silent server has two seconds once, and then nothing; the engine's timeout is much longer."""


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_acks_of_other_shards_go_through(engines: Engines, lasting_cluster: Cluster, name: str) -> None:
    handled, goes_on = Counter[str](), threading.Event()
    engine = engines.opened(lasting_cluster.url, name=name, shards=SHARDS, timeout=30.0)
    engine.start()
    keys = [shard_keys(name, shard) for shard in range(SHARDS)]
    victim = lasting_cluster.node_of_slot(keys[0].slot)
    others = [each for each in keys if lasting_cluster.node_of_slot(each.slot) is not victim]
    worker = engine.worker(concurrency=COUNT)

    @worker.on("mail")
    def handle(delivery: Delivery[Any]) -> None:
        handled[delivery.id] += 1
        goes_on.wait(60)

    def at_others() -> int:
        return sum(lasting_cluster.node_of_slot(each.slot).ask("HLEN", each.task) for each in others)

    with engines.working(worker):
        engine.push_many([Task(n, topic="mail") for n in range(COUNT)])
        wait_until(lambda: len(handled) == COUNT, "all are handled")
        assert 0 < at_others() < COUNT
        victim.pause()
        try:
            goes_on.set()
            wait_until(lambda: at_others() == 0, "those of the others are settled", timeout=AT_ONCE_S)
        finally:
            victim.resume()
        wait_until(lambda: counted(engine).leased == 0, "the rest is, too")
    assert set(handled.values()) == {1}
    engine.close()
