"""What workers over HTTP are told when servers are silent, or gone: which receipts to send again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from cluster.cluster import Cluster
from cluster.node import Node
from cluster.server import Server
from shardq import Delivery, Engine
from shardq.core.layout.keys import shard_keys
from shardq.errors import SettleError
from shardq.http.receipts import read
from tests.http.workers import done, gateway_of
from tests.support.states import claim, ready_of
from tests.support.waiting import wait_until

SHARDS = 6
COUNT = 90


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


def test_what_one_master_refuses_and_another_does_is_not_said_to_be_unwritten(
    lasting_cluster: Cluster, name: str, tmp_path: Path
) -> None:
    """A refusal, 503, is the first answer; of the silent master's tasks it is unknown, and others' are extended."""
    with (
        Engine(lasting_cluster.url, name=name, shards=SHARDS, timeout=5.0) as engine,
        gateway_of(lasting_cluster.url, name, tmp_path) as gateway,
    ):
        engine.start()
        consumer = engine.consumer("mail", lease=300)
        held: dict[Node, list[Delivery]] = {}
        receipts: dict[Node, list[str]] = {}

        def node_of(shard: int) -> Node:
            return lasting_cluster.node_of_slot(shard_keys(name, shard).slot)

        worker = gateway.worker()
        for n in range(COUNT):
            engine.push(n, topic="mail")
        deliveries = claim(consumer, COUNT // 2)
        tasks: list[dict[str, Any]] = []
        while len(tasks) < COUNT // 2:
            tasks += worker.claim(max=100, wait=20, lease=300)
        engine.stop()
        for delivery in deliveries:
            held.setdefault(node_of(delivery.shard), []).append(delivery)
        for task in tasks:
            receipts.setdefault(node_of(read(task["receipt"]).shard), []).append(task["receipt"])
        silent, refusing, *others = sorted(held, key=lambda node: node.port)
        with Redis(port=refusing.port) as admin:
            admin.execute_command("ACL SETUSER default resetkeys")
            try:
                some = [receipt for node in (refusing, *others) for receipt in receipts[node]]
                partly = worker.post("/v1/extend", json={"receipts": some, "seconds": 600})
                assert (partly.status_code, partly.json()["code"]) == (504, "Unanswered")
                assert "some are not" in partly.json()["detail"]
                silent.pause()
                with pytest.raises(SettleError) as caught:
                    consumer.ack([*held[silent], *held[refusing]])
            finally:
                silent.resume()
                admin.execute_command("ACL SETUSER default allkeys")
        assert caught.value.settled == caught.value.lost == []
        assert set(caught.value.failed) == {d.id for d in held[refusing]}
        assert set(caught.value.unknown) == {d.id for d in held[silent]}
