"""What tests look at."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from cluster.server import Server
from shardq import Engine
from shardq.core.fleet.report import RouteStats
from tests.support.states import counted


def database_of(server: Server, number: int) -> Iterator[redis.Redis]:
    """For a fixture: a client of this database, which is empty, and is left empty."""
    with redis.Redis.from_url(f"{server.url}/{number}") as client:
        client.flushdb()
        yield client
        client.flushdb()


def ids_in(server: Server, stream: str) -> list[str]:
    """The ids of the entries of a stream, in their order."""
    return [fields["id"] for _, fields in server.ask("XRANGE", stream, "-", "+")]


def sink_stats(engine: Engine, topic: str) -> RouteStats:
    (seen,) = [each for each in engine.stats().sinks if each.topic == topic]
    return seen


def left(engine: Engine) -> int:
    """The tasks that the engine still has, dead ones too."""
    stats = counted(engine)
    return stats.scheduled + stats.ready + stats.leased + stats.dead
