"""What workers over HTTP are told when servers are silent, or gone: which receipts to send again."""

from __future__ import annotations

from pathlib import Path

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine
from shardq.core.layout.keys import shard_keys
from tests.http.workers import done, gateway_of
from tests.support.states import ready_of
from tests.support.waiting import wait_until

SHARDS = 6
COUNT = 30


def test_receipts_of_a_silent_master_are_unknown_and_others_are_done(
    lasting_cluster: Cluster, name: str, tmp_path: Path
) -> None:
    with (
        Engine(lasting_cluster.url, name=name, shards=SHARDS) as engine,
        gateway_of(lasting_cluster.url, name, tmp_path) as gateway,
    ):
        engine.start()
        for n in range(COUNT):
            engine.push(n, topic="mail")
        wait_until(lambda: ready_of(engine, "mail") == COUNT, "all are ready")
        worker = gateway.worker()
        tasks = worker.claim(max=100, wait=20, lease=300)
        while len(tasks) < COUNT:
            tasks += worker.claim(max=100, wait=20, lease=300)
        victim = lasting_cluster.node_of_slot(shard_keys(name, 0).slot)
        victim.pause()
        try:
            answer = worker.settle(*(done(task, "ack") for task in tasks))
        finally:
            victim.resume()
        assert answer["done"] > 0
        assert answer["failed"] == answer["lost"] == []
        assert len(answer["unknown"]) == COUNT - answer["done"]
        assert answer["error"]
        unknown = [task for task in tasks if task["receipt"] in answer["unknown"]]
        again = worker.settle(*(done(task, "ack") for task in unknown))
        assert again["done"] + len(again["lost"]) == len(unknown)  # lost: the first one has done it
        assert engine.stats().leased == 0


def test_nothing_is_settled_while_the_server_is_away(own_server: Server, name: str, tmp_path: Path) -> None:
    with (
        Engine(own_server.url, name=name, shards=SHARDS) as engine,
        gateway_of(own_server.url, name, tmp_path) as gateway,
    ):
        engine.start()
        engine.push("letter", topic="mail")
        worker = gateway.worker()
        [task] = worker.claim(wait=20, lease=300)
        own_server.pause()
        try:
            silent = worker.post("/v1/settle", json=[done(task, "ack")])
            assert (silent.status_code, silent.json()["code"]) == (504, "Unanswered")
        finally:
            own_server.resume()
        again = worker.settle(done(task, "ack"))
        assert again["done"] + len(again["lost"]) == 1
        own_server.stop()
        for path, body in (
            ("settle", [done(task, "ack")]),
            ("extend", {"receipts": [task["receipt"]], "seconds": 60}),
            ("claim", {"topics": ["mail"], "wait": 1}),
        ):
            gone = worker.post(f"/v1/{path}", json=body)
            assert (gone.status_code, gone.headers["retry-after"]) == (503, "1"), gone.text
        own_server.restart()
