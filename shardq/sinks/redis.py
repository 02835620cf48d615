"""Redis elsewhere: a list or a stream of another server, cluster, or service of Sentinels.

    redis://HOST:PORT/DB#LIST
    redis+cluster://HOST:PORT,HOST:PORT#stream:NAME

The URL is one of an engine, with ``timeout=`` among its options, and what follows the ``#`` is the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import parse_qsl, unquote

from shardq.calls.append import Entry, Way, append
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.errors import InvalidUrl
from shardq.layout import destinations
from shardq.sinks.base import SENT, Message, Result, Sink
from shardq.sinks.urls import TIMEOUT, timeout

CONNECTIONS = 4
TIMEOUT_S = 3.0
"""Longer than a connection takes, shorter than a failover: those are for the circuit."""


class RedisSink(Sink):
    """Appends to a key. What the server refuses, such as a key of another type, holds the topic back: it says nothing
    of one task.
    """

    def __init__(self, url: str) -> None:
        where, mark, fragment = url.partition("#")
        to = unquote(fragment)
        scheme = where.partition("://")[0]
        if not mark or not destinations.key_of(to):
            raise InvalidUrl(f"a {scheme}:// URL to forward to ends with the key: {scheme}://…#LIST or #stream:NAME")
        if destinations.key_of(to).startswith("shardq:{"):
            raise InvalidUrl(f"{to!r} is a key of shardq's own; give the name of another list or stream")
        timeout_s = timeout(scheme, dict(parse_qsl(where.partition("?")[2])), TIMEOUT_S)
        self._settings = Settings.from_url(
            where, timeout=timeout_s, connect_timeout=timeout_s, connections=CONNECTIONS, also=(TIMEOUT,)
        )
        self._key = destinations.key_of(to)
        self._way: Way = "stream" if destinations.is_stream(to) else "right"
        self._driver: Driver | None = None

    def put_left(self) -> None:
        if self._way == "stream":
            super().put_left()
        self._way = "left"

    def open(self) -> None:
        self._driver = Driver(self._settings)
        self._driver.open()

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        assert self._driver is not None, "it is open"
        entries = [Entry(message.id, message.payload, message.headers) for message in batch]
        self._driver.call(append(self._key, self._way, entries))
        return [SENT] * len(batch)

    def interrupt(self) -> None:
        driver = self._driver
        if driver is not None:
            driver.close()

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
