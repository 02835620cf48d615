"""Engines with a situation: what is wrong with them is made on a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from shardq import Delivery, Engine, Task, Worker
from shardq.core.layout.keys import shard_keys
from shardq.worker import report as reporter
from tests.cli.shell import Shell
from tests.support.servers import Servers, aged
from tests.support.states import ready_of
from tests.support.waiting import wait_until

SHARDS = 4

OLD_S = 100.0
"""Longer than a ready task may wait by default."""


@dataclass
class World:
    """A new engine, and what makes situations of it."""

    engine: Engine
    url: str
    name: str
    servers: Servers
    shell: Shell
    monkeypatch: pytest.MonkeyPatch
    stack: ExitStack
    """What is closed at the end of the test."""

    def ready(self, topic: str, count: int = 1) -> None:
        """Dispatches some tasks of a topic."""
        self.engine.start()
        self.engine.push_many(Task(n, topic=topic) for n in range(count))
        wait_until(lambda: ready_of(self.engine, topic) == count, "they are ready")

    def age(self, topic: str) -> None:
        """Makes the ready tasks of a topic look as if they had been seen long ago."""
        aged(self.engine, topic, OLD_S, ask=self.servers.ask)

    def work(self, topic: str, handler: Callable[[Delivery], Any], **options: Any) -> None:
        """Runs a worker in this process, which reports often."""
        worker = self.engine.worker(**options)
        worker.on(topic)(handler)
        self.run(worker)

    def run(self, worker: Worker) -> None:
        """Runs it until the end of the test."""
        self.monkeypatch.setattr(reporter, "BEAT_S", 0.2)
        thread = threading.Thread(target=worker.run)
        thread.start()

        def stop() -> None:
            worker.stop()
            thread.join()

        self.stack.callback(stop)

    def hang(self, topic: str) -> None:
        """Runs a worker whose only handler hangs until the end of the test."""
        over = threading.Event()
        self.work(topic, lambda _: over.wait(), concurrency=1)
        self.stack.callback(over.set)

    def another(self) -> Engine:
        return self.stack.enter_context(Engine(self.url, name=self.name))

    def deafen(self, topic: str) -> None:
        """A process is registered, and listens; ready tasks came as if another one had been woken."""
        self.ready(topic, 3)
        self.age(topic)
        client = self.stack.enter_context(redis.Redis.from_url(self.url))
        for keys in (shard_keys(self.name, shard) for shard in range(SHARDS)):
            pubsub = self.stack.enter_context(client.pubsub())
            pubsub.ssubscribe(keys.wake("host-1"))
            pubsub.get_sharded_message(timeout=60.0)
            self.servers.ask(keys.slot, "ZADD", keys.waiting(topic), 1, "host-1")

    @property
    def address(self) -> str:
        return self.url.partition("://")[2]
