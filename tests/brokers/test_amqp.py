"""A topic that is forwarded to RabbitMQ: confirmed messages, unroutable ones, and a broker that hangs or is killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import amqp
import pytest

from cluster.ports import free_port
from cluster.rabbitmq import RabbitServer
from cluster.server import Server
from shardq import Engine, Task
from tests.sinks.seen import left, sink_stats
from tests.sinks.test_tls import check_tls
from tests.support import certificates
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

MAX_MESSAGE = 200_000
PAIR = "ca={0}/ca.pem&cert={0}/client.pem&key={0}/client.key"
QUORUM = {"x-queue-type": "quorum"}


@pytest.fixture(scope="module")
def broker() -> Iterator[RabbitServer]:
    with RabbitServer(f"max_message_size = {MAX_MESSAGE}\n") as server:
        yield server


def declare(broker: RabbitServer, queue: str, **arguments: Any) -> None:
    with amqp.Connection(broker.address) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "direct", durable=True, auto_delete=False)
        channel.queue_declare(queue, durable=True, auto_delete=False, arguments=arguments)
        channel.queue_bind(queue, "shop", f"to.{queue}")


def taken(broker: RabbitServer, queue: str) -> list[tuple[dict[str, Any], bytes]]:
    """All messages of a queue: their properties and bodies."""
    found: list[tuple[dict[str, Any], bytes]] = []
    with amqp.Connection(broker.address) as connection:
        channel = connection.channel()
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            found.append((message.properties, message.body))
    return found


def test_messages_of_a_queue(feeding: Engine, broker: RabbitServer) -> None:
    declare(broker, "mail")
    for to in (f"{broker.url}#shop/to.mail", f"{broker.url}#/mail"):
        feeding.forward("mail", to=to)
        id = feeding.push({"n": 1}, topic="mail", headers={"trace": "00-1", "text": "é", "n" * 256: "too long"})
        wait_until(lambda: left(feeding) == 0, "it is taken")
        ((properties, body),) = taken(broker, "mail")
        assert body == b'{"n":1}'
        assert properties == {
            "message_id": id,
            "application_headers": {"trace": "00-1", "text": "é"},
            "content_type": "application/json",
            "type": "mail",
            "delivery_mode": 2,
        }


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
    declare(broker, "full", **{"x-max-length": 1, "x-overflow": "reject-publish"})
    feeding.forward("full", to=f"{broker.url}#/full")
    ids = feeding.push_many([Task(n, topic="full", max_attempts=1) for n in range(3)])
    wait_until(lambda: "a queue is full" in sink_stats(feeding, "full").error, "it waits")
    got: list[Any] = []

    def all_are_there() -> bool:
        got.extend(taken(broker, "full"))
        return len(got) == 3

    wait_until(all_are_there, "each has its turn", timeout=60)
    assert {properties["message_id"] for properties, _ in got} == set(ids)


def _is_dead(engine: Engine, id: str) -> bool:
    return state_of(engine, id) == "dead"


def test_a_message_that_is_too_large_among_others(feeding: Engine, broker: RabbitServer) -> None:
    declare(broker, "sizes")
    feeding.pause("sizes")
    feeding.forward("sizes", to=f"{broker.url}#/sizes")
    for _ in range(2):  # the first one tells how large they may be
        ids = feeding.push_many([Task("x" * (n % 7) * 20_000, topic="sizes", max_attempts=1) for n in range(300)])
        large = feeding.push("x" * MAX_MESSAGE, topic="sizes")
        wait_until(lambda: feeding.stats().ready == 301, "all are ready")
        feeding.resume("sizes")
        wait_until(partial(_is_dead, feeding, large), "it is refused")
        task = feeding.get(large)
        assert task is not None
        assert task.reason == f"the broker takes messages of {MAX_MESSAGE:,} bytes at most"
        feeding.cancel(large)
        wait_until(lambda: left(feeding) == 0, "the others are taken")
        assert {properties["message_id"] for properties, _ in taken(broker, "sizes")} == set(ids)
        assert sink_stats(feeding, "sizes").error == ""
        feeding.pause("sizes")


def test_a_broker_without_memory(feeding: Engine, broker: RabbitServer) -> None:
    declare(broker, "short")
    feeding.forward("short", to=f"{broker.url}?timeout=2#/short")
    broker.control("set_vm_memory_high_watermark", "0.0000001")
    try:
        ids = feeding.push_many([Task(n, topic="short", max_attempts=1) for n in range(50)])
        wait_until(lambda: "short of memory" in sink_stats(feeding, "short").error, "it says so", timeout=60)
    finally:
        broker.control("set_vm_memory_high_watermark", "0.4")
    wait_until(lambda: left(feeding) == 0, "all are taken", timeout=60)
    assert {properties["message_id"] for properties, _ in taken(broker, "short")} == set(ids)


def test_a_broker_that_hangs(feeding: Engine, broker: RabbitServer) -> None:
    declare(broker, "hung")
    feeding.forward("hung", to=f"{broker.url}?timeout=2#/hung")
    ids = [feeding.push(0, topic="hung", max_attempts=1)]
    wait_until(lambda: sink_stats(feeding, "hung").sent == 1, "it is taken")
    with broker.stopped():
        ids += feeding.push_many([Task(n, topic="hung", max_attempts=1) for n in range(50)])
        wait_until(lambda: sink_stats(feeding, "hung").error, "it is noticed", timeout=60)
    wait_until(lambda: left(feeding) == 0, "all are taken", timeout=60)
    assert {properties["message_id"] for properties, _ in taken(broker, "hung")} == set(ids)


@pytest.mark.ledger
def test_a_broker_that_is_killed_under_load(feeding: Engine, broker: RabbitServer) -> None:
    # a quorum queue of one node is at times left without a leader by a crash (RabbitMQ 3.10)
    declare(broker, "load")
    feeding.forward("load", to=f"{broker.url}#/load")
    ids = feeding.push_many([Task(n, topic="load", max_attempts=1) for n in range(20_000)])
    wait_until(lambda: sink_stats(feeding, "load").sent > 1_000, "some are taken")
    broker.kill()
    wait_until(lambda: sink_stats(feeding, "load").circuit != "closed" or left(feeding) == 0, "it is noticed")
    broker.start()
    wait_until(lambda: left(feeding) == 0, "nothing is left here", timeout=100)
    assert {properties["message_id"] for properties, _ in taken(broker, "load")} == set(ids)


@pytest.mark.ledger
def test_relays_and_the_engines_server_are_killed(own_server: Server, broker: RabbitServer, name: str) -> None:
    declare(broker, "killed", **QUORUM)
    with ExitStack() as stack, Engine(own_server.url, name=name, shards=4, timeout=30.0) as engine:
        first, _ = [stack.enter_context(Worker("tests.support.dispatching", own_server.url, name, 4)) for _ in range(2)]
        engine.forward("killed", to=f"{broker.url}#/killed")
        ids: list[str] = []
        for fault in (first.kill, own_server.kill):
            ids += engine.push_many([Task(n, topic="killed", max_attempts=3) for n in range(5_000)])
            fault()
            if fault == own_server.kill:
                own_server.start()
        wait_until(lambda: left(engine) == 0, "nothing is left here", timeout=100)
    assert {properties["message_id"] for properties, _ in taken(broker, "killed")} == set(ids)


def test_amqps(feeding: Engine, tmp_path: Path) -> None:
    files, port = certificates.made(tmp_path), free_port()
    config = f"""\
listeners.ssl.1 = 127.0.0.1:{port}
ssl_options.cacertfile = {files}/ca.pem
ssl_options.certfile = {files}/server.pem
ssl_options.keyfile = {files}/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = true
"""
    with RabbitServer(config) as server:
        declare(server, "mail")
        check_tls(feeding, files, lambda options: f"amqps://guest:guest@127.0.0.1:{port}?{options}#/mail")
        ((_, body),) = taken(server, "mail")
        assert body == b"1"
        feeding.forward("mail", to=f"amqps://guest:guest@localhost:{port}?{PAIR.format(files)}#/mail")
        feeding.push(2, topic="mail")
        wait_until(lambda: "certificate" in sink_stats(feeding, "mail").error, "the name is not the server's")
        feeding.forward("mail", to=f"amqps://guest:guest@localhost:{port}?{PAIR.format(files)}&check_hostname=no#/mail")
        wait_until(lambda: left(feeding) == 0, "it is taken")
