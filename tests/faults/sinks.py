"""Topics that are forwarded: to another Redis, to an endpoint, to a sink of one's own."""

from __future__ import annotations

import errno
import json
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from shardq import Bury, Engine
from shardq.features.sinks import Message, Refused, Result, Sent, Sink
from tests.faults.neighbours import Endpoint, NatsNeighbour, Neighbour, RedisNeighbour
from tests.faults.way import Way

TOPIC = "mail"

SILENT_S = 0.4
"""How long a sink may be silent."""


class SinkWay(Way):
    """A topic of an engine that is forwarded to the neighbour."""

    patience: ClassVar[Mapping[str, float]] = {"shardq.features.sinks.routes.SENDING_S": 0.5}

    def __init__(self, engine: Engine, neighbour: Neighbour) -> None:
        self.engine = engine
        self.neighbour = neighbour
        neighbour.empty()
        engine.start()
        self.send_to(neighbour.address)

    @abstractmethod
    def to(self, address: str, login: str = "") -> str:
        """The URL to forward to; the ``login`` has its @."""

    def payload(self, unique: str, fault: str = "") -> Any:
        """The payload of an item; that of one that has the fault."""
        return {"id": unique, "fault": fault}

    def headers(self, unique: str, fault: str = "") -> Mapping[str, str]:
        return {}

    def prepare(self, uniques: Sequence[str]) -> None:
        pass

    def put(self, unique: str, **options: Any) -> None:
        self.engine.push(self.payload(unique), topic=TOPIC, id=unique, headers=self.headers(unique), **options)

    def put_bad(self, fault: str, unique: str) -> None:
        headers = self.headers(unique, fault)
        self.engine.push(self.payload(unique, fault), topic=TOPIC, id=unique, headers=headers, max_attempts=1)

    def put_large(self, unique: str, size: int) -> None:
        payload = self.payload(unique, fault="x" * size)
        self.engine.push(payload, topic=TOPIC, id=unique, headers=self.headers(unique))

    def aside(self) -> Mapping[str, str]:
        dead = self.engine.tasks(topic=TOPIC, state="dead")
        return {task.id.removeprefix(f"{TOPIC}/"): task.reason or "" for task in dead}

    def counted(self) -> int:
        return self.engine.stats().dead

    def trouble(self) -> str:
        return "; ".join(reason for reason in self.engine.health().reasons if repr(TOPIC) in reason)

    def send_to(self, address: str, login: str = "") -> None:
        self.engine.forward(TOPIC, to=self.to(address, login))

    def stop(self) -> None:
        self.engine.close()


_REDIS_TAKES_ALL = "Redis keeps whatever it is given, and looks at none of it"


class RedisWay(SinkWay):
    """A stream of another Redis."""

    kind = "redis"
    neighbour: RedisNeighbour
    not_here: ClassVar[Mapping[str, str]] = {
        "refusing one item": _REDIS_TAKES_ALL,
        "timing out on one item": _REDIS_TAKES_ALL,
        "slow on one item": _REDIS_TAKES_ALL,
    }

    def to(self, address: str, login: str = "") -> str:
        return f"redis://{login}{address}?timeout={SILENT_S}#stream:mail"

    def arrived(self) -> Sequence[str]:
        entries = self.neighbour.server.ask("XRANGE", "mail", "-", "+")
        return [fields["id"].removeprefix(f"{TOPIC}/") for _, fields in entries]


class HttpWay(SinkWay):
    kind = "http"
    neighbour: Endpoint

    def to(self, address: str, login: str = "") -> str:
        return f"http://{login.rpartition(':')[2]}{address}/in#timeout={SILENT_S}"

    def arrived(self) -> Sequence[str]:
        return [json.loads(line) for line in self.neighbour.file.read_text().splitlines()]


class NatsWay(SinkWay):
    """A stream of JetStream."""

    kind = "nats"
    neighbour: NatsNeighbour
    not_here: ClassVar[Mapping[str, str]] = {
        "timing out on one item": "JetStream looks at the size and the subject of a message, and nothing else",
        "slow on one item": "JetStream looks at the size and the subject of a message, and nothing else",
    }

    def to(self, address: str, login: str = "") -> str:
        return f"nats://{login or 'ann:right@'}{address}?timeout=1#mail"

    def payload(self, unique: str, fault: str = "") -> Any:
        return {"id": unique, "fault": "x" * ((1 << 20) - 60) if fault == "refusing one item" else fault}

    def arrived(self) -> Sequence[str]:
        return [json.loads(message.data)["id"] for message in self.neighbour.messages()]


class Nearby(Neighbour):
    """The other side of what runs in this process: an object that takes items, or raises."""

    def __init__(self) -> None:
        self.arrived: list[str] = []
        self.error: Exception | None = None
        self._answers = threading.Event()
        self._answers.set()

    def take(self, id: str, fault: str) -> None:
        self._answers.wait()
        if self.error is not None:
            raise self.error
        match fault:
            case "refusing one item":
                raise Bury("never")
            case "timing out on one item":
                raise TimeoutError("no answer for this one")
            case "slow on one item":
                threading.Event().wait(0.3)
        self.arrived.append(id)

    @property
    def address(self) -> str:
        return ""

    def freeze(self) -> None:
        self._answers.clear()

    def thaw(self) -> None:
        self._answers.set()

    def fill(self) -> None:
        self.error = OSError(errno.ENOSPC, "no space left")

    def kill(self) -> None:
        self.error = ConnectionRefusedError("nobody listens")

    def make_room(self) -> None:
        self.error = None

    start = make_room

    def empty(self) -> None:
        self.arrived, self.error = [], None


class OwnSink(Sink):
    """A sink of somebody's own, which sends a batch as a whole: one item that fails makes all of it fail."""

    neighbour: ClassVar[Nearby]

    def __init__(self, url: str) -> None:
        pass

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        payloads = [json.loads(message.payload) for message in batch]
        if any(payload["fault"] == "timing out on one item" for payload in payloads):
            raise TimeoutError("no answer")
        try:
            for payload in payloads:
                self.neighbour.take(payload["id"], payload["fault"])
        except Bury as exc:
            if len(batch) > 1:
                raise
            return [Refused(str(exc))]
        return [Sent()] * len(batch)


class OwnWay(SinkWay):
    """The sink of an entry point."""

    kind = "own"
    neighbour: Nearby
    not_here: ClassVar[Mapping[str, str]] = {
        "frozen": "its author bounds the time of a send",
        "wrong password": "as dead: its open() or send() raises",
        "wrong address": "as dead: its open() or send() raises",
    }

    def to(self, address: str, login: str = "") -> str:
        OwnSink.neighbour = self.neighbour
        return "own://here"

    def arrived(self) -> Sequence[str]:
        return self.neighbour.arrived
