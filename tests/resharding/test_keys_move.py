"""A resize with keys: nothing of a key is out in two shards, and each key goes on by itself."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.errors import ChangeUnderWay
from tests.resharding.conftest import SHARDS
from tests.support.waiting import wait_until

KEYS, PUSHED = 60, 600


@pytest.mark.parametrize(("url", "shards"), [("single", 16), ("single", 2), ("cluster", 16)], indirect=["url"])
def test_a_key_goes_on_in_its_order_one_at_a_time(engine: Engine, shards: int) -> None:
    engine.limit("w", per_key=1)
    engine.start()
    engine.push_many([Task(0, topic="plain", delay=3600) for _ in range(1000)])
    pushed, begun = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    out, twice, lock, ended = Counter[str](), set[str](), threading.Lock(), threading.Event()

    def work() -> None:
        consumer = engine.consumer("w")
        while not ended.is_set():
            deliveries = consumer.claim(20, wait=0.2)
            with lock:
                for delivery in deliveries:
                    key = delivery.id.split("/")[1]
                    out[key] += 1
                    twice.update({key} if out[key] > 1 else ())
                    begun[key].append(delivery.payload)
            time.sleep(random.uniform(0, 0.005))
            with lock:
                out.subtract(delivery.id.split("/")[1] for delivery in deliveries)
            consumer.ack(deliveries)

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        # also while nothing is at the new shards, and with a backlog at the old ones
        for n in range(PUSHED):
            key = f"k{n % KEYS}"
            pushed[key].append(n)
            engine.push(n, topic="w", key=key)
            if n == PUSHED // 3:
                change = engine.resize(shards)
                with pytest.raises(ChangeUnderWay, match="one change at a time"):
                    engine.resize(shards + 1)
        wait_until(lambda: sum(map(len, begun.values())) == PUSHED, "all are given out", timeout=60)
    finally:
        ended.set()
        for worker in workers:
            worker.join()
    assert change.wait(30)
    assert not twice
    assert begun == pushed


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_tasks_that_their_keys_do_not_know_are_found(
    engine: Engine, single: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a server has evicted what its keys know: all that was scheduled is given."""
    monkeypatch.setattr("shardq.core.resharding.lane_keeper.REPAIR_S", 0.02)
    monkeypatch.setattr("shardq.core.resharding.lane_keeper.REPAIRED_S", 0.02)
    monkeypatch.setattr("shardq.core.resharding.repair.PAGE", 20)
    engine.limit("w", per_key=1)
    for at in range(0, 400, 100):  # of one due time together
        engine.push_many([Task(n, topic="w", key=f"k{n % 20}", id=f"{n:04}", delay=0.1) for n in range(at, at + 100)])
    engine.push_many([Task(n, delay=3600) for n in range(100)])
    for shard in range(SHARDS):
        keys = shard_keys(name, shard, keyed=True)
        assert single.ask("DEL", keys.keys, keys.alarms) == 2
    engine.start()
    consumer = engine.consumer("w")
    got = set[str]()

    def all_given() -> bool:
        given = consumer.claim(20, wait=0.1)
        got.update(each.id for each in given)
        consumer.ack(given)
        return len(got) == 400

    wait_until(all_given, "all are given out")


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_is_left_of_a_gone_task_is_mended(
    engine: Engine, single: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place without a task would hold its key for ever; so would a lane without an alarm."""
    monkeypatch.setattr("shardq.core.resharding.lane_keeper.REPAIR_S", 0.02)
    monkeypatch.setattr("shardq.core.resharding.lane_keeper.REPAIRED_S", 0.02)
    engine.limit("w", per_key=1)
    ids = engine.push_many([Task(n, topic="w", key=f"k{n}", delay=0.1) for n in range(20)])
    for shard in range(SHARDS):
        keys = shard_keys(name, shard, keyed=True)
        for id in ids:
            if engine.topology.shard_of(id) == shard:
                lane = id[: id.rindex("/") + 1]
                single.ask("ZADD", keys.placed, 0, f"{lane}gone")
                single.ask("ZREM", keys.alarms, lane)
    engine.start()
    consumer = engine.consumer("w")
    got = set[str]()

    def all_given() -> bool:
        got.update(each.id for each in consumer.claim(20, wait=0.1))
        return len(got) == 20

    wait_until(all_given, "all are given out")
