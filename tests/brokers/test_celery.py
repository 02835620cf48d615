"""Celery on RabbitMQ: a worker runs what waited in shardq, on classic and quorum queues; a process without the app
publishes it, and what no queue takes is kept. What RabbitMQ refuses holds up nothing else, nor does a frozen one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import celery
import pytest
from kombu import Exchange, Queue

from cluster.rabbitmq import RabbitServer
from cluster.server import Server
from shardq import Engine
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
    with RabbitServer("max_message_size = 200000\n") as server:
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


def test_what_rabbitmq_refuses_holds_up_nothing_else(make: Make, broker: RabbitServer) -> None:
    _, module = make(broker=broker.url)
    exchange = Exchange("gone", "topic")  # of a direct one Celery uses the queue alone
    gone = Queue("gone", exchange, "gone")
    full = Queue("full", Exchange(""), "full", queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    good = Queue("good", Exchange(""), "good")

    def arrived(connection: Any, queue: Any) -> int:
        return int(queue(connection.default_channel).queue_declare(passive=True).message_count)

    with module.app.connection_for_write() as connection:
        for queue in (gone, full, good):
            queue(connection.default_channel).declare()
        large = module.add.apply_async(("x" * 210_000, 1), countdown=1000, queue=good)
        for n in range(20):
            for queue in (gone, full, good):
                module.add.apply_async((n, 1), countdown=1000, queue=queue, task_id=f"same-{n}")
        assert len(waiting(module)) == 61
        exchange(connection.default_channel).delete()
        [dispatcher] = module.dispatchers
        hurry(module)
        wait_until(lambda: arrived(connection, good) == 20, "the others have arrived")
        [dead] = wait_until(lambda: list(module.engine.tasks(state="dead")), "it is refused")
        assert dead.id.endswith(large.id)
        assert "is larger than configured max size 200000" in module.engine.get(dead.id).reason

        def errors() -> str:
            return str([each.error for each in dispatcher.stats().sinks])

        wait_until(lambda: "404 NOT_FOUND - no exchange 'gone'" in errors(), "it says which exchange")
        wait_until(lambda: "the key 'full' of the exchange '': a queue is full" in errors(), "it says which queue")
        gone(connection.default_channel).declare()
        wait_until(lambda: arrived(connection, gone) == 20, "they come when the exchange is there", timeout=SOON_S)


def test_a_frozen_broker(make: Make, broker: RabbitServer) -> None:
    stand, module = make(broker=broker.url)
    module.add.apply_async((1, 1), countdown=1000)
    module.add.apply_async((1, 1), countdown=1000, queue="another")
    [(topic, route), *_] = module.engine.topology.routes.items()
    module.engine.forward(topic, to=route.to.replace("?", "?timeout=1&"))
    [dispatcher] = module.dispatchers
    wait_until(lambda: len(dispatcher.stats().sinks) == 2, "the relays run")
    with broker.stopped():
        hurry(module)
        wait_until(lambda: "answered nothing for 1 s" in str(dispatcher.stats().sinks), "it is noticed")
        began = time.monotonic()
        dispatcher.close()
        assert time.monotonic() - began < 20
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("shardq-sink")],
        "no thread of it is left",
    )
    with Engine(stand.settings["engine"], name=stand.settings["name"]) as other:
        other.start()
        wait_until(lambda: not list(module.engine.tasks()), "all are taken by another", timeout=SOON_S)
