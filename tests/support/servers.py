"""The stored data of the servers behind a URL, read by plain commands, without the engine's drivers."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from shardq import Engine
from shardq.core.layout.keys import ShardKeys, shard_keys


class Servers:
    """The masters behind the URL of one server or of a cluster, as they are when this is made."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self._clients: dict[str, redis.Redis] = {}
        """By address: a master from which slots have moved away may own several ranges of them."""
        self._slots: list[tuple[int, int, redis.Redis]] = []
        if scheme == "redis+cluster":
            seed = self._connected(rest.split(",")[0])
            for first, last, (host, port, *_), *_ in _told(seed, "CLUSTER", "SLOTS"):
                self._slots.append((first, last, self._connected(f"{host.decode()}:{port}")))
        else:
            self._slots.append((0, 16383, self._connected(rest)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients.values():
            client.close()

    @property
    def masters(self) -> list[redis.Redis]:
        return list(dict.fromkeys(client for _, _, client in self._slots))

    def master(self, slot: int) -> redis.Redis:
        """Returns the master that owned the slot when this was made."""
        return next(client for first, last, client in self._slots if first <= slot <= last)

    def ask(self, slot: int, *words: str | bytes | float) -> Any:
        """One command to the master of a slot."""
        return _told(self.master(slot), *words)

    def ask_all(self, *words: str | bytes | float) -> list[Any]:
        """One command to every master."""
        return [_told(client, *words) for client in self.masters]

    def now_ms(self, slot: int) -> float:
        """Returns the clock of the slot's master, in ms."""
        seconds, micros = self.ask(slot, "TIME")
        return int(seconds) * 1000 + int(micros) / 1000

    def held(self, name: str) -> dict[bytes, bytes]:
        """Every key of an engine with all that is in it: two answers are equal when nothing was written between."""
        found: dict[bytes, bytes] = {}
        for client in self.masters:
            for key in client.scan_iter(match=f"shardq:{{{name}*", count=1000):
                # servers rehash a large hash while nothing is written, and then have its fields in another order
                if _told(client, "TYPE", key) in (b"hash", "hash"):
                    found[key] = b"\0".join(b"\0".join(pair) for pair in sorted(_told(client, "HGETALL", key).items()))
                else:
                    found[key] = _told(client, "DUMP", key)
        return found

    def _connected(self, address: str) -> redis.Redis:
        if address not in self._clients:
            host, _, port = address.rpartition(":")
            retry = Retry(NoBackoff(), 0)
            self._clients[address] = redis.Redis(host=host, port=int(port), socket_timeout=20.0, retry=retry)
        return self._clients[address]


def _told(client: redis.Redis, *words: str | bytes | float) -> Any:
    command: Callable[..., Any] = client.execute_command
    return command(*words)


def keys_of(name: str, shards: int) -> list[ShardKeys]:
    """The keys of every shard."""
    return [shard_keys(name, shard) for shard in range(shards)]


def aged(engine: Engine, topic: str, old_s: float, *, ask: Callable[..., Any]) -> None:
    """Makes the ready tasks of a topic look as if they had been ready for so long. ``ask`` is ``Servers.ask``."""
    engine.stats()
    for keys in keys_of(engine.name, engine.topology.shards):
        at_ms = int((int(ask(keys.slot, "TIME")[0]) - old_s) * 1000)
        for key, field in ((keys.looks, topic), (keys.meta, f"began/{topic}")):
            if (marks := ask(keys.slot, "HGET", key, field)) is not None:
                ask(keys.slot, "HSET", key, field, b"%b:%d" % (marks.partition(b":")[0], at_ms))
