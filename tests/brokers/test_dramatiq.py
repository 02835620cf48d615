"""Messages of Dramatiq on RabbitMQ that wait in an engine, and run in Dramatiq's unmodified worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import redis
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from cluster.rabbitmq import RabbitServer
from cluster.server import Server
from shardq import Engine
from shardq.integrations.dramatiq import delay_through
from tests.integrations.dramatiq.actors import Actors, Note
from tests.integrations.dramatiq.conftest import StartWorker, client, start_worker
from tests.support.waiting import wait_until

__all__ = ["client", "start_worker"]


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitServer]:
    with RabbitServer() as server:
        yield server


def test_delayed_messages_and_retries_run_once(
    rabbit: RabbitServer, single: Server, name: str, client: redis.Redis, start_worker: StartWorker
) -> None:
    broker = RabbitmqBroker(url=rabbit.url)
    note = Note(single.url, f"{name}:ran")
    actors = Actors(broker, note)
    with Engine(single.url, name=name) as engine, delay_through(broker, engine, above=0):
        engine.start()
        messages = [actors.run.send_with_options(args=(n,), delay=10 * n) for n in range(100)]
        prioritized = actors.run.send_with_options(delay=100, broker_priority=0)
        failing = actors.fail.send_with_options(delay=100)
        start_worker(TESTS_RABBIT=rabbit.url, TESTS_ENGINE=name)
        ids = [message.message_id for message in (*messages, prioritized, failing, failing)]

        def ran() -> Counter[str]:
            found = client.lrange(f"{name}:ran", 0, -1)
            return Counter(bytes(id).decode() for id in found)  # type: ignore[arg-type]

        wait_until(lambda: ran() == Counter(ids), "all have run", timeout=60)
        through = len(ids) - 1
        wait_until(lambda: sum(sink.sent for sink in engine.stats().sinks) == through, "all but one came through it")
    broker.close()
    note.client.close()
