"""What no server tells, on the model: how much of records a script reads; and what the oldest server makes it do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from shardq.core.calls import by_id, consume, dispatch, resharding
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.lua.shard import EPOCH, NOW, T
from tests.sim.model.commands import COMMANDS, Command, Reply
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Server

MIB = 1 << 20
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


@pytest.fixture
def read() -> Iterator[list[int]]:
    """The bytes of each HMGET."""
    sizes: list[int] = []
    real = COMMANDS[b"HMGET"]

    def hmget(space: Keyspace, *words: bytes) -> Reply:
        answer = real.run(space, *words)
        assert isinstance(answer, tuple)
        sizes.append(sum(len(each) for each in answer if isinstance(each, bytes)))
        return answer

    command = Command(hmget, *(getattr(real, name) for name in real.__dataclass_fields__ if name != "run"))
    with mock.patch.dict(COMMANDS, {b"HMGET": command}):
        yield sizes


READERS: dict[str, tuple[str, Callable[[ShardKeys, list[str]], Call[Any]]]] = {
    "get": ("", lambda keys, ids: by_id.get_many(keys, EPOCH, ids).at(NOW)),
    "claim": (
        "ready",
        lambda keys, ids: consume.claim(keys, EPOCH, {"": 1000}, max=1000, lease_ms=9, token="t").at(NOW),
    ),
    "forward": (
        "ready",
        lambda keys, ids: dispatch.forward(keys, EPOCH, "", to=keys.ready("theirs"), side="right", limit=1000).at(NOW),
    ),
    "take": ("due", lambda keys, ids: resharding.take(keys, EPOCH, "n1", 2, ids).at(NOW)),
}

SIZES = {
    "large ones": ([MIB // 8] * 200, 2 * MIB),
    "small ones first": ([10] * 20 + [MIB // 8] * 200, 6 * MIB),
    "small ones": ([1000] * 500, MIB),
    "a hundred are enough": ([MIB // 100] * 300, MIB + MIB // 50),
}
"""And the most bytes that are read, also of those that are not given: a chunk is as many as those before suggest."""


@pytest.mark.parametrize(("sizes", "most"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("place", "call"), READERS.values(), ids=READERS)
def test_records_are_read_in_chunks(
    read: list[int], place: str, call: Callable[[ShardKeys, list[str]], Call[Any]], sizes: list[int], most: int
) -> None:
    its = server()
    ids = stocked(its, sizes)
    if place == "ready":
        its.command("RPUSH", KEYS.ready(""), *ids)
    elif place == "due":
        its.command("ZADD", KEYS.due, *(word for id in ids for word in (T, id)))
    read.clear()
    assert asked(its, call(KEYS, ids))[0] == b"ok"
    assert MIB // 3 < sum(read) <= most
    # and not one by one
    assert len(read) <= 30
