"""What the oldest server makes a script do, on the model."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import resharding
from shardq.core.calls.request import Call
from shardq.core.layout.keys import shard_keys
from tests.lua.shard import EPOCH, NOW, T
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Server

KEYS = shard_keys("x", 1)


def server(*, is_old: bool = False, shuffle: int | None = None) -> Server:
    """A server with an open shard. ``is_old``: Redis 7.0."""
    server = Server(Keyspace(lambda: T * 1000, hscan_without_values=not is_old, shuffle=shuffle))
    server.command("HSET", KEYS.meta, "epoch", EPOCH, "clock", T)
    return server


def asked(server: Server, call: Call[Any]) -> Any:
    return server.run(call.script, call.keys, call.words)


def stocked(server: Server, sizes: list[int]) -> list[str]:
    """Tasks with records of these sizes. Returns their ids."""
    ids = [f"i{n:03}" for n in range(len(sizes))]
    for id, size in zip(ids, sizes, strict=True):
        server.command("HSET", KEYS.task, id, b"\x10" + b"x" * (size - 1))
    return ids


@pytest.mark.parametrize("shuffle", [None, 1])
def test_stock_where_names_can_not_be_read_alone(shuffle: int | None) -> None:
    """It tells the bytes that it read, so that its caller asks for less."""
    old = server(is_old=True, shuffle=shuffle)
    ids = stocked(old, list(range(10, 60)))
    met: list[str] = []
    place, bytes = "0", 0
    while place != "0" or not met:
        page = resharding.stock(KEYS, EPOCH, place, count=10).at(NOW)
        found = page.decode(asked(old, page))
        met += found.ids
        bytes, place = bytes + found.bytes, found.cursor
    assert sorted(met) == ids
    assert bytes == sum(range(10, 60))
