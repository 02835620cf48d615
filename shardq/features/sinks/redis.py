"""Redis elsewhere: a list or a stream of another server, cluster, or service of Sentinels.

    redis://HOST:PORT/DB#LIST
    redis+cluster://HOST:PORT,HOST:PORT#stream:NAME

The URL is one of an engine, with ``timeout=`` among its options, and the key follows the ``#``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import parse_qsl, unquote

from shardq.core.calls.dispatch import Entry, Way, append
from shardq.core.calls.request import Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout import destinations
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Result, Sink
from shardq.features.sinks.urls import TIMEOUT, split_name, timeout

T = TypeVar("T")

CONNECTIONS = 4
TIMEOUT_S = 3.0
"""Longer than a connection takes, shorter than a failover: those are for the circuit."""


class OnRedis(Sink):
    """Connects by the URL of an engine, which may also have ``timeout=``; sinks that derive from it have ``send``."""

    def __init__(self, url: str) -> None:
        timeout_s = timeout(url.partition("://")[0], dict(parse_qsl(url.partition("?")[2])), TIMEOUT_S)
        self._settings = Settings.from_url(
            url, timeout=timeout_s, connect_timeout=timeout_s, connections=CONNECTIONS, also=(TIMEOUT,)
        )
        self._driver: Driver | None = None

    def open(self) -> None:
        self._driver = Driver(self._settings)
        self._driver.open()

    def _call(self, command: Command[T]) -> T:
        assert self._driver is not None, "it is open"
        return self._driver.call(command)

    def interrupt(self) -> None:
        if (driver := self._driver) is not None:
            driver.close()

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()


class RedisSink(OnRedis):
    """Appends to a key. What the server refuses, such as a key of another type, holds the topic back: it says nothing
    of one task.
    """

    def __init__(self, url: str) -> None:
        where, name = split_name(url)
        to = unquote(name)
        scheme = where.partition("://")[0]
        if not destinations.key_of(to):
            raise InvalidUrl(f"a {scheme}:// URL to forward to ends with the key: {scheme}://…#LIST or #stream:NAME")
        if destinations.key_of(to).startswith("shardq:{"):
            raise InvalidUrl(f"{to!r} is a key of shardq's own; give the name of another list or stream")
        super().__init__(where)
        self._key = destinations.key_of(to)
        self._way: Way = "stream" if destinations.is_stream(to) else "right"
        self._maxlen: int | None = None

    def put_left(self) -> None:
        if self._way == "stream":
            super().put_left()
        self._way = "left"

    def trim(self, maxlen: int) -> None:
        if self._way != "stream":
            super().trim(maxlen)
        self._maxlen = maxlen

    def send(self, batch: Sequence[Message]) -> Sequence[Result]:
        entries = [Entry(message.id, message.payload, message.headers) for message in batch]
        self._call(append(self._key, self._way, entries, self._maxlen))
        return [SENT] * len(batch)
