"""An import of tasks to push keeps the order of each key while workers run, whatever becomes of its calls."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from typing import Any

from cluster.server import Server
from shardq import Task
from tests.keys.account import TOPIC
from tests.support.disturbing import again_and_again
from tests.support.engines import Engines
from tests.support.waiting import wait_until

KEYS, EACH = 20, 500


def test_tasks_of_a_key_come_in_the_order_of_the_lines(engines: Engines, own_server: Server, name: str) -> None:
    engine = engines.opened(own_server.url, name=name, shards=4)
    engine.start()
    lines = [json.dumps({"payload": n, "topic": TOPIC, "key": f"k{key}"}) for n in range(EACH) for key in range(KEYS)]
    came = defaultdict[str | None, list[Any]](list)
    over = threading.Event()

    def work() -> None:
        consumer = engine.consumer(TOPIC)
        while not over.is_set():
            for delivery in consumer.claim(100, wait=0.2):
                came[delivery.key].append(delivery.payload)
                consumer.ack(delivery)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with again_and_again(lambda: own_server.ask("SCRIPT", "FLUSH"), pause_s=0.0002):
            assert engine.restore(lines).pushed == len(lines)
        wait_until(lambda: sum(map(len, came.values())) >= len(lines), "all have come", timeout=90)
    finally:
        over.set()
        worker.join()
    assert came == {f"k{key}": [*range(EACH)] for key in range(KEYS)}


def test_dispatched_after_an_import_old_and_new_tasks_of_a_key_come_by_their_due_times(
    engines: Engines, own_server: Server, name: str
) -> None:
    old, new = (engines.opened(own_server.url, name=f"{name}-{which}", shards=4) for which in ("old", "new"))
    old.push_many([Task(n, topic=TOPIC, key="k") for n in range(50)])
    time.sleep(0.01)
    new.push_many([Task(n, topic=TOPIC, key="k") for n in range(50, 60)])
    new.restore([*old.export()])
    new.start()
    consumer, came = new.consumer(TOPIC), list[Any]()

    def all_came() -> bool:
        for delivery in consumer.claim(10, wait=0.2):
            came.append(delivery.payload)
            consumer.ack(delivery)
        return len(came) >= 60

    wait_until(all_came, "all have come")
    assert came == [*range(60)]
