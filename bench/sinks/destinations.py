"""The sinks that are measured: servers of this machine, each started for its measurement alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import amqp
import psutil

from bench.children import Child
from cluster.ports import HOST, free_port
from cluster.rabbitmq import RabbitServer
from cluster.server import Server

QUEUE = "orders"
CONNECTIONS = 64
"""Requests at a time, as many as a route may have."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """The tasks that a sink has."""

    tasks: int
    """The different ones."""
    late_ms: Sequence[float] = ()
    """From due to there, of those that tell when they were due."""


@dataclass(frozen=True, slots=True)
class Destination:
    """One sink that runs."""

    url: str
    """The URL to forward to."""
    pids: list[int]
    """Its processes, whose children count too."""
    arrived: Callable[[], Arrived]
    """May be asked once."""

    def cpu_s(self) -> float:
        """The CPU time of its processes so far."""
        found = [psutil.Process(pid) for pid in self.pids]
        found += [child for process in found for child in process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in found)


@contextmanager
def a_list(binary: Path) -> Iterator[Destination]:
    with Server(binary) as server:
        pid = int(server.ask("INFO", "server")["process_id"])
        yield Destination(f"{server.url}#{QUEUE}", [pid], lambda: Arrived(len(set(server.ask("LRANGE", QUEUE, 0, -1)))))


@contextmanager
def a_quorum_queue(_: Path) -> Iterator[Destination]:
    with RabbitServer() as server:
        with amqp.Connection(server.address) as connection:
            arguments = {"x-queue-type": "quorum"}
            connection.channel().queue_declare(QUEUE, durable=True, auto_delete=False, arguments=arguments)
        yield Destination(f"{server.url}#/{QUEUE}", server.pids, lambda: _taken(server.address))


@contextmanager
def an_endpoint(_: Path) -> Iterator[Destination]:
    port = free_port()
    with Child("bench.sinks.endpoint", port) as child:
        child.await_ready()
        child.begin()
        yield Destination(
            f"http://{HOST}:{port}/#connections={CONNECTIONS}", [child.pid], lambda: Arrived(**child.end())
        )


def _taken(address: str) -> Arrived:
    ids: list[str] = []

    def take(message: Any) -> None:
        ids.append(message.properties["message_id"])

    with amqp.Connection(address) as connection:
        channel = connection.channel()
        _, count, _ = channel.queue_declare(QUEUE, passive=True)
        channel.basic_consume(QUEUE, no_ack=True, callback=take)
        while len(ids) < count:
            connection.drain_events(timeout=30)
    return Arrived(len(set(ids)))


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    start: Callable[[Path], AbstractContextManager[Destination]]
    """Starts it, with the program of a Redis server."""
    share: float = 1.0
    """The part of the usual number of tasks with which it is measured: some are slow."""
    is_timed: bool = False
    """True if it tells how late tasks come there that fall due one by one."""
    is_broker: bool = False
    """True if it is left out without ``--brokers``."""


KINDS = (
    Kind("a list of another Redis", a_list),
    Kind(f"an endpoint of HTTP, {CONNECTIONS} connections", an_endpoint, 0.1, is_timed=True),
    Kind("a quorum queue of RabbitMQ, one node", a_quorum_queue, 0.5, is_broker=True),
)
