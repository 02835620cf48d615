"""A topic that is forwarded to RabbitMQ: confirmed messages, unroutable ones, and a broker that is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pika
import pytest

from cluster.rabbitmq import RabbitServer
from shardq import Engine, Task
from tests.sinks.seen import left, sink_stats
from tests.support.states import state_of
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitServer]:
    with RabbitServer() as server:
        yield server


def declare(broker: RabbitServer, queue: str, **options: Any) -> None:
    with closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", durable=True)
        channel.queue_declare(queue, durable=True, **options)
        channel.queue_bind(queue, "shop", f"to.{queue}")


def taken(broker: RabbitServer, queue: str) -> list[tuple[Any, bytes]]:
    """All messages of a queue: their properties and bodies."""
    found: list[tuple[Any, bytes]] = []
    with closing(pika.BlockingConnection(pika.URLParameters(broker.url))) as connection:
        channel = connection.channel()
        while True:
            method, properties, body = channel.basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))


def test_messages_of_a_queue(feeding: Engine, broker: RabbitServer) -> None:
    declare(broker, "mail")
    for to in (f"{broker.url}#shop/to.mail", f"{broker.url}#/mail"):
        feeding.forward("mail", to=to)
        id = feeding.push({"n": 1}, topic="mail", headers={"trace": "00-1"})
        wait_until(lambda: left(feeding) == 0, "it is taken")
        ((properties, body),) = taken(broker, "mail")
        assert (body, properties.message_id, properties.headers) == (b'{"n":1}', id, {"trace": "00-1"})
        assert (properties.content_type, properties.type, properties.delivery_mode) == ("application/json", "mail", 2)


def test_what_can_not_be_routed_is_dead_and_what_is_not_there_waits(feeding: Engine, broker: RabbitServer) -> None:
    declare(broker, "mail")
    feeding.forward("lost", to=f"{broker.url}#shop/nowhere")
    lost = feeding.push(1, topic="lost")
    wait_until(lambda: state_of(feeding, lost) == "dead", "it is refused")
    task = feeding.get(lost)
    assert task is not None
    assert task.reason == "unroutable: no queue takes the key 'nowhere' of the exchange 'shop'"
    feeding.forward("early", to=f"{broker.url}#not-there/key")
    feeding.push(1, topic="early", max_attempts=1)
    wait_until(lambda: "404 NOT_FOUND" in sink_stats(feeding, "early").error, "it waits")
    declare(broker, "full", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
    feeding.forward("full", to=f"{broker.url}#/full")
    ids = feeding.push_many([Task(n, topic="full", max_attempts=1) for n in range(3)])
    wait_until(lambda: "a queue is full" in sink_stats(feeding, "full").error, "it waits")
    got: list[Any] = []

    def all_are_there() -> bool:
        got.extend(taken(broker, "full"))
        return len(got) == 3

    wait_until(all_are_there, "each has its turn", timeout=60)
    assert {properties.message_id for properties, _ in got} == set(ids)


@pytest.mark.ledger
def test_a_broker_that_is_killed_under_load(feeding: Engine, broker: RabbitServer) -> None:
    declare(broker, "load")
    feeding.forward("load", to=f"{broker.url}#/load")
    ids = feeding.push_many([Task(n, topic="load", max_attempts=1) for n in range(3000)])
    wait_until(lambda: sink_stats(feeding, "load").sent > 300, "some are taken")
    broker.kill()
    wait_until(lambda: sink_stats(feeding, "load").circuit != "closed", "it is noticed")
    broker.start()
    wait_until(lambda: left(feeding) == 0, "nothing is left here", timeout=100)
    assert {properties.message_id for properties, _ in taken(broker, "load")} == set(ids)
