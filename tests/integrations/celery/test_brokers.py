"""Messages for what is no plain list: they are published by kombu, in a process that has no Celery app."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kombu import Exchange, Queue

from shardq import Engine
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import Failed, Message, Sent
from shardq.features.sinks.kombu import KombuSink
from tests.integrations.celery.conftest import Make
from tests.integrations.celery.test_through_redis import hurry
from tests.support.waiting import wait_until


def published(stand: Any, queue: Any, connection: Any) -> Any:
    """The next message of a queue."""
    found: list[Any] = []

    def get() -> Any:
        message = queue(connection.default_channel).get()
        if message is not None:
            message.ack()
            found.append(message)
        return found

    wait_until(get, "a message has arrived")
    return found[0]


def is_json(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return False
    return True


def test_a_topic_exchange_and_a_queue_that_expires(make: Make) -> None:
    """The first is a matter of lists; each message renews the life of the second, so that kombu has to put it there."""
    stand, module = make()
    topics = Exchange(f"{stand.queue}-x", type="topic")
    queues = [Queue(f"{stand.queue}-a", topics, "mail.#"), Queue(f"{stand.queue}-b", topics, "mail.eu")]
    expiring = Queue(f"{stand.queue}-e", Exchange(""), f"{stand.queue}-e", expires=600.0)
    with module.app.connection_for_write() as connection:
        for queue in (*queues, expiring):
            queue(connection.default_channel).declare()
        args = {"args": (1, 2), "countdown": 100, "exchange": topics, "declare": queues}
        both = module.add.apply_async(**args, routing_key="mail.eu")
        one = module.add.apply_async(**args, routing_key="mail.us")
        assert len(list(module.engine.tasks(state="scheduled"))) == 3
        late = module.add.apply_async(
            (1, 2), countdown=100, queue=expiring, priority=3, expires=500, compression="zlib"
        )
        nobody = module.add.apply_async(**args, routing_key="other")
        hurry(module)
        ids = {published(stand, queues[0], connection).headers["id"] for _ in range(2)}
        assert ids == {both.id, one.id}
        assert published(stand, queues[1], connection).headers["id"] == both.id
        message = published(stand, expiring, connection)
        assert message.headers["id"] == late.id
        assert message.properties["priority"] == 3
        assert message.payload[0] == [1, 2]
        assert 490_000 < int(message.properties["expiration"]) <= 500_000
        assert 0 < stand.redis.ttl(expiring.name) <= 600 or stand.redis.llen(expiring.name) == 0
    routes = module.engine.topology.routes.values()
    assert {route.to.partition("#")[0].partition("?")[0] for route in routes} >= {f"kombu+{stand.settings['broker']}"}
    assert nobody.id not in str(list(module.engine.tasks()))


def test_the_file_system_as_broker(make: Make, tmp_path: Path) -> None:
    folder = str(tmp_path)
    options = {"data_folder_in": folder, "data_folder_out": folder, "control_folder": f"{folder}/control"}
    stand, module = make(broker="filesystem://", conf={"broker_transport_options": options})
    sent = module.add.apply_async((1, 2), countdown=100, serializer="pickle")
    hurry(module)
    # kombu writes the file in two steps, and takes one that is half written for a message
    wait_until(lambda: any(is_json(file) for file in tmp_path.glob("*.msg")), "a message is in the folder")
    with module.app.connection_for_read() as connection:
        message = published(stand, Queue(stand.queue, Exchange(""), stand.queue), connection)
        assert message.headers["id"] == sent.id
        assert message.content_type == "application/x-python-serialize"


def test_a_message_that_no_transport_takes_holds_up_no_other() -> None:
    sink = KombuSink("kombu+memory://")
    sink.open()
    try:
        bad, taken = sink.send([message_of(ENVELOPE | {"body": None}), message_of(ENVELOPE)])
    finally:
        sink.close()
    assert isinstance(bad, Failed)
    assert isinstance(taken, Sent)


ENVELOPE: dict[str, Any] = {
    "body": "{}", "base64": False, "priority": 0, "content_type": "application/json", "content_encoding": "utf-8",
    "headers": {}, "properties": {"delivery_info": {}}, "exchange": "", "routing_key": "mail", "expires_ms": None,
    "exchange_type": None,
}  # fmt: skip


def message_of(envelope: dict[str, Any]) -> Message:
    payload = json.dumps(envelope).encode()
    return Message(id="celery/1", topic="celery", payload=payload, codec="json", headers={}, attempt=1)


@pytest.mark.parametrize("url", ["kombu+nothing://host", "kombu+amqp://host?shardq=%%%", "kombu+://"])
def test_urls_that_kombu_does_not_know(url: str) -> None:
    with pytest.raises(InvalidUrl):
        Engine("redis://127.0.0.1:1").forward("mail", to=url)
