"""Redis elsewhere: a list or a stream of another server, cluster, or service of Sentinels.

    redis://HOST:PORT/DB#LIST
    redis+cluster://HOST:PORT,HOST:PORT#stream:NAME

The URL is one of an engine, with ``timeout=`` among its options, and what follows the ``#`` is the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import unquote

from shardq.core.calls.dispatch import Entry, Way, append
from shardq.core.layout import destinations
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Result
from shardq.features.sinks.on_redis import OnRedis
from shardq.features.sinks.urls import split_name


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
