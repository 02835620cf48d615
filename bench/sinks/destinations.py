"""The sinks that are measured: servers of this machine, each started for its measurement alone."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

from bench.children import Child
from cluster.nats import NatsServer
from cluster.other_server import OtherServer
from cluster.ports import HOST, free_port
from cluster.rabbitmq import RabbitServer
from cluster.server import Server

QUEUE = "orders"


class Destination(ABC):
    """One sink, for a ``with`` block."""

    name = ""
    needs = ""
    """The option of the command without which it is left out."""
    share = 1.0
    """The part of the usual number of tasks with which it is measured: some are slow."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @abstractmethod
    def _start(self) -> None: ...

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL to forward to."""

    @property
    @abstractmethod
    def pids(self) -> list[int]:
        """Its processes, whose children count too."""

    @abstractmethod
    def arrived(self) -> int:
        """The number of different tasks that it has. It may be asked once."""

    def cpu_s(self) -> float:
        """The CPU time of its processes so far."""
        found = [psutil.Process(pid) for pid in self.pids]
        found += [child for process in found for child in process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in found)


class Redis(Destination):
    binary: Path
    """The program of the server, set by the command."""

    def _start(self) -> None:
        self.server = self._stack.enter_context(Server(self.binary))

    @property
    def pids(self) -> list[int]:
        return [int(self.server.ask("INFO", "server")["process_id"])]


class List(Redis):
    name = "a list of another Redis"

    @property
    def url(self) -> str:
        return f"{self.server.url}#{QUEUE}"

    def arrived(self) -> int:
        return len(set(self.server.ask("LRANGE", QUEUE, 0, -1)))


class Stream(Redis):
    name = "a stream of another Redis"

    @property
    def url(self) -> str:
        return f"{self.server.url}#stream:{QUEUE}"

    def arrived(self) -> int:
        return len({fields["id"] for _, fields in self.server.ask("XRANGE", QUEUE, "-", "+")})


class Http(Destination):
    name = "an HTTP endpoint of 60 lines"
    share = 0.1

    def _start(self) -> None:
        self._port = free_port()
        self._child = self._stack.enter_context(Child("bench.sinks.endpoint", str(self._port)))
        self._child.await_ready()
        self._child.begin()

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self._port}/"

    @property
    def pids(self) -> list[int]:
        return [self._child.pid]

    def arrived(self) -> int:
        return int(self._child.end())


class _Broker(Destination):
    server: OtherServer

    @property
    def pids(self) -> list[int]:
        return self.server.pids


class Nats(_Broker):
    name = "a stream of NATS JetStream, on disk"
    share = 0.5

    def _start(self) -> None:
        self.server = self._stack.enter_context(NatsServer())
        asyncio.run(self._on(lambda js: js.add_stream(name=QUEUE, subjects=[f"{QUEUE}.>"])))

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.server.port}#{QUEUE}.new"

    def arrived(self) -> int:
        # within the duplicate window each id is stored once
        return int(asyncio.run(self._on(lambda js: js.stream_info(QUEUE))).state.messages)

    async def _on(self, work: Any) -> Any:
        import nats

        client = await nats.connect(f"nats://{HOST}:{self.server.port}")
        try:
            return await work(client.jetstream())
        finally:
            await client.close()


class _Rabbit(_Broker):
    needs = "brokers"
    arguments: ClassVar[dict[str, str]]

    def _start(self) -> None:
        self.server = self._stack.enter_context(RabbitServer())
        with self._connection() as connection:
            connection.channel().queue_declare(QUEUE, durable=True, auto_delete=False, arguments=self.arguments)

    def _connection(self) -> Any:
        import amqp

        return amqp.Connection(f"{HOST}:{self.server.port}")

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.server.port}/#/{QUEUE}"

    def arrived(self) -> int:
        ids: set[str] = set()
        with self._connection() as connection:
            channel = connection.channel()
            _, count, _ = channel.queue_declare(QUEUE, passive=True)
            taken = 0

            def take(message: Any) -> None:
                nonlocal taken
                taken += 1
                ids.add(message.properties["message_id"])

            channel.basic_consume(QUEUE, no_ack=True, callback=take)
            while taken < count:
                connection.drain_events(timeout=30)
        return len(ids)


class QuorumQueue(_Rabbit):
    name = "a quorum queue of RabbitMQ, one node"
    share = 0.5
    arguments: ClassVar = {"x-queue-type": "quorum"}


class ClassicQueue(_Rabbit):
    name = "a classic queue of RabbitMQ"
    share = 0.5
    arguments: ClassVar = {"x-queue-type": "classic"}


DESTINATIONS: tuple[type[Destination], ...] = (List, Stream, Nats, Http, QuorumQueue, ClassicQueue)
