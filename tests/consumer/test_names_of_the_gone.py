"""Processes come and go, as in deploys: what they leave behind makes no task late."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.core.layout.keys import control_keys, shard_keys
from tests.support.servers import Servers
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SHARDS, GONE = 64, 1000

SOON_S = 3.0
"""What is promised after processes were killed."""


class Picker(threading.Thread):
    """Claims what comes to the topic, and notes when."""

    def __init__(self, engine: Engine, topic: str) -> None:
        super().__init__()
        self.picked: dict[str, float] = {}
        self._stopped = threading.Event()
        self._consumer = engine.consumer(topic)

    def run(self) -> None:
        while not self._stopped.is_set():
            for delivery in self._consumer.claim(1, wait=1.0):
                self.picked[delivery.id] = time.monotonic()
                self._consumer.ack(delivery)

    def stop(self) -> None:
        self._stopped.set()
        self.join()


@pytest.fixture
def engine(single: Server, name: str) -> Iterator[Engine]:
    with Engine(single.url, name=name, shards=SHARDS) as engine:
        engine.start()
        yield engine


def names(servers: Servers, name: str, topic: str) -> list[str]:
    """All processes that are registered for the topic, and for its permits."""
    keys = [shard_keys(name, shard) for shard in range(SHARDS)]
    found = [word for each in keys for word in servers.ask(each.slot, "ZRANGE", each.waiting(topic), 0, -1)]
    control = control_keys(name)
    return [word.decode() for word in [*found, *servers.ask(control.slot, "ZRANGE", control.waiting(topic), 0, -1)]]


def test_a_thousand_that_were_killed_in_each_shard(engine: Engine, single: Server, name: str) -> None:
    """Each task of a quiet topic is picked up soon: a draw goes on past the names of the gone."""
    since_ms = int(single.ask("TIME")[0]) * 1000 - 60_000
    for shard in range(SHARDS):
        words = [word for n in range(GONE) for word in (since_ms + n, f"gone-{n}")]
        single.ask("ZADD", shard_keys(name, shard).waiting("mail"), *words)
    picker = Picker(engine, "mail")
    picker.start()
    try:
        wait_until(
            lambda: all(single.ask("ZCARD", shard_keys(name, shard).waiting("mail")) > GONE for shard in range(SHARDS)),
            "it waits in each shard",
        )
        for n in range(12):
            began, id = time.monotonic(), str(engine.push(n, topic="mail"))
            wait_until(partial(picker.picked.get, id), f"task {n} is picked up", timeout=20)
            assert picker.picked[id] - began < SOON_S, n
    finally:
        picker.stop()


def test_a_process_that_ends_takes_its_names_along(engine: Engine, single: Server, name: str) -> None:
    engine.limit("mail", concurrency=1)
    with Servers(single.url) as servers:
        with Engine(single.url, name=name) as other:
            pickers = [Picker(other, topic) for topic in ("mail", "sms")]
            for picker in pickers:
                picker.start()
            wait_until(lambda: len(names(servers, name, "sms")) == SHARDS, "it waits in each shard")
            for picker in pickers:
                picker.stop()
        assert names(servers, name, "sms") == names(servers, name, "mail") == []
