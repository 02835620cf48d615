"""The sinks that are measured: servers of this machine, each started for its measurement alone."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import amqp
import psutil

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


class List(Destination):
    name = "a list of another Redis"
    binary: Path
    """The program of the server, set by the command."""

    def _start(self) -> None:
        self.server = self._stack.enter_context(Server(self.binary))

    @property
    def pids(self) -> list[int]:
        return [int(self.server.ask("INFO", "server")["process_id"])]

    @property
    def url(self) -> str:
        return f"{self.server.url}#{QUEUE}"

    def arrived(self) -> int:
        return len(set(self.server.ask("LRANGE", QUEUE, 0, -1)))


class QuorumQueue(Destination):
    name = "a quorum queue of RabbitMQ, one node"
    needs = "brokers"
    share = 0.5

    def _start(self) -> None:
        self.server = self._stack.enter_context(RabbitServer())
        with amqp.Connection(self.server.address) as connection:
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare(QUEUE, durable=True, auto_delete=False, arguments=arguments)

    @property
    def pids(self) -> list[int]:
        return self.server.pids

    @property
    def url(self) -> str:
        return f"{self.server.url}#/{QUEUE}"

    def arrived(self) -> int:
        ids: set[str] = set()
        with amqp.Connection(self.server.address) as connection:
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


DESTINATIONS: tuple[type[Destination], ...] = (List, QuorumQueue)
