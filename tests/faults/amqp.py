"""RabbitMQ: a topic that is forwarded there, and Celery's messages, which kombu publishes. The broker is that of
``tests/support``, in this process. What it does to a message stands in the body, before the bar.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from cluster.ports import free_port
from tests.faults.neighbours import Neighbour
from tests.faults.sinks import SILENT_S, SinkWay
from tests.support.amqp_broker import AmqpBroker, Answer

QUEUE = "mail"

BAD: dict[bytes, Answer] = {
    b"refusing one item": "unroutable",
    b"timing out on one item": "silent",
    b"slow on one item": "slow",
}
DONE = BAD | {b'"' + fault: answer for fault, answer in BAD.items()}
"""The beginning of a body, which may be JSON → what becomes of it."""


class AmqpNeighbour(Neighbour):
    def __init__(self) -> None:
        self._port = free_port()
        self._stored: list[tuple[str, bytes]] = []
        self._broker: AmqpBroker | None = None

    @property
    def broker(self) -> AmqpBroker:
        assert self._broker is not None, "it runs"
        return self._broker

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def stored(self) -> list[tuple[str, bytes]]:
        return self._stored if self._broker is None else [*self._stored, *self._broker.taken]

    def freeze(self) -> None:
        self.broker.talking.clear()

    def thaw(self) -> None:
        self.broker.talking.set()

    def fill(self) -> None:
        self.broker.answers[QUEUE] = "nack"

    def make_room(self) -> None:
        self.broker.answers.clear()

    def kill(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.__exit__(None, None, None)
            self._stored += broker.taken

    def start(self) -> None:
        self._broker = AmqpBroker(self._port).__enter__()
        self._broker.of_bodies = DONE

    def empty(self) -> None:
        self._stored.clear()
        self.broker.taken.clear()


class AmqpWay(SinkWay):
    kind = "amqp"
    neighbour: AmqpNeighbour

    def to(self, address: str, login: str = "") -> str:
        return f"amqp://{login or 'guest:guest@'}{address}?timeout={SILENT_S}#/{QUEUE}"

    def payload(self, unique: str, fault: str = "") -> Any:
        return f"{fault}|{unique}"

    def arrived(self) -> Sequence[str]:
        return [json.loads(body).partition("|")[2] for _, body in self.neighbour.stored]


class CeleryAmqpWay(SinkWay):
    kind = "celery-amqp"
    neighbour: AmqpNeighbour

    def to(self, address: str, login: str = "") -> str:
        return f"kombu+amqp://{login or 'guest:guest@'}{address}//?timeout={SILENT_S}"

    def payload(self, unique: str, fault: str = "") -> Any:
        return {
            "body": f"{fault}|{unique}", "base64": False, "priority": 0, "content_type": "text/plain",
            "content_encoding": "utf-8", "headers": {"id": unique}, "properties": {"delivery_info": {}},
            "exchange": "", "routing_key": QUEUE, "expires_ms": None, "exchange_type": None,
        }  # fmt: skip

    def arrived(self) -> Sequence[str]:
        return [body.decode().partition("|")[2] for _, body in self.neighbour.stored]
