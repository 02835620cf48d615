"""Celery on RabbitMQ: a worker runs what waited in shardq, on classic and quorum queues; a process without the app
publishes it, and what no queue takes is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import celery
import pytest
from kombu import Exchange, Queue

from cluster.rabbitmq import RabbitServer
from cluster.server import Server
from tests.integrations.celery.conftest import make
from tests.integrations.celery.processes import SOON_S, Stand
from tests.integrations.celery.test_through_redis import hurry, waiting
from tests.support.waiting import wait_until
from tests.support.workers import Worker

__all__ = ["make"]

# by which Celery stores its results
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

Make = Callable[..., tuple[Stand, Any]]


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitServer]:
    with RabbitServer() as server:
        yield server


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_worker_on_rabbitmq(make: Make, broker: RabbitServer, single: Server, name: str, kind: str) -> None:
    conf = {
        "task_default_queue_type": kind,
        "task_default_exchange_type": "topic",
        "broker_native_delayed_delivery_queue_type": kind,
    }
    stand, module = make(broker=broker.url, conf=conf, dispatching=False, retry=1.2)
    with Worker("tests.support.dispatching", single.url, name, 4) as dispatcher, stand.worker("--pool=prefork", "-c2"):
        assert dispatcher.said()
        plain = module.add.apply_async(
            (1, 1), countdown=1000, expires=1600, headers={"x-tenant": "é"}, compression="zlib"
        )
        revoked = module.add.apply_async((2, 2), countdown=1000)
        chain = celery.chain(module.add.s(1, 3).set(countdown=1), module.add.s(20).set(countdown=1)).apply_async()
        again = module.again.apply_async((2,), countdown=1)
        revoked.revoke()
        assert revoked.state == "REVOKED"
        assert plain.id in {task.id.partition("/")[2] for task in waiting(module)}
        for task in waiting(module):
            if task.id.endswith(plain.id):
                module.engine.reschedule(task.id, delay=0)
        assert chain.get(60) == 24
        assert again.get(60) == 2
        runs = stand.wait(5)
        assert plain.state == "PENDING"  # its message has come, and its ETA has not
    assert {run["id"] for run in runs} == {chain.id, chain.parent.id, again.id}


def test_the_genuine_message(make: Make, broker: RabbitServer) -> None:
    stand, module = make(broker=broker.url)
    known: dict[str, Any] = {
        "countdown": 1000,
        "expires": 5000,
        "priority": 4,
        "task_id": "same",
        "compression": "zlib",
    }
    queue = Queue(stand.queue, Exchange(stand.queue), stand.queue)
    found = []
    with module.app.connection_for_read() as connection:
        for option in ({"shardq": False}, {}):
            module.add.apply_async((1, 2), **known, **option)
            hurry(module)

            def arrived() -> Any:
                return queue(connection.default_channel).get(no_ack=True)

            found.append(wait_until(arrived, "it has arrived", timeout=SOON_S))
        genuine, through = found
        assert (through.body, through.content_type, through.content_encoding) == (
            genuine.body,
            genuine.content_type,
            genuine.content_encoding,
        )
        differ = ("eta", "expires")
        assert {k: v for k, v in through.headers.items() if k not in differ} == {
            k: v for k, v in genuine.headers.items() if k not in differ
        }
        assert 4_900_000 < int(through.properties.pop("expiration")) <= int(genuine.properties.pop("expiration"))
        through.properties.pop("application_headers")
        genuine.properties.pop("application_headers")
        assert through.properties == genuine.properties
        module.add.apply_async((3, 4), countdown=1000)
        queue(connection.default_channel).delete()
        hurry(module)
        wait_until(lambda: list(module.engine.tasks(state="dead")), "it is kept")
        assert "unroutable" in str(module.engine.get(next(iter(module.engine.tasks(state="dead"))).id))
