"""The model itself: what it refuses, snapshots, dumps, orders. That it does what servers do is tried beside them."""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch, listing
from shardq.core.calls.request import Call, Word
from shardq.core.layout.keys import shard_keys
from shardq.core.scripts import Script, script
from tests.lua.shard import EPOCH, NOW, T, record
from tests.sim.model.keyspace import Keyspace, ModelError
from tests.sim.model.server import Answer, Failure, Server

KEYS = shard_keys("x", 0)
A = record("a")


class Shard:
    """An open shard on a model."""

    def __init__(self, **options: Any) -> None:
        self.space = Keyspace(lambda: T * 1000, **options)
        self.server = Server(self.space)
        words: list[Word] = [EPOCH, "{}", "1", 1, "1", "0", "first", "", ""]
        self.server.run(script("open"), [KEYS.meta, KEYS.copy, KEYS.alarms, KEYS.gates], words)

    def ask(self, call: Call[Any]) -> Answer:
        return self.server.run(call.script, call.keys, call.words)

    def run(self, text: str, *keys: str) -> Answer:
        return self.server.run(Script.of("own", text), keys, [])

    def push(self, *ids: str) -> None:
        for id in ids:
            assert self.ask(by_id.push(KEYS, EPOCH, [id, 0, A]).at(NOW)) == [b"ok"]


@pytest.fixture
def shard() -> Shard:
    return Shard()


def test_a_task_goes_its_way(shard: Shard) -> None:
    before = shard.space.dump()
    shard.push("a")
    assert shard.ask(dispatch.dispatch(KEYS, EPOCH, [""], limit=10, max_attempts=3).at(NOW))[2] == 1
    claim = consume.claim(KEYS, EPOCH, {"": 5}, max=5, lease_ms=9000, token="p:1").at(NOW)
    assert shard.ask(claim)[8] == b"a"
    assert shard.ask(consume.settle(KEYS, EPOCH, [consume.SettleAck("a", "p:1")]).at(NOW)) == [b"ok"]
    left = dict(shard.space.dump())
    assert left.keys() - dict(before).keys() == {KEYS.topics.encode()}


def test_a_key_that_is_not_declared_is_an_error_of_the_model(shard: Shard) -> None:
    with pytest.raises(ModelError, match="HGET of b'other', which is not among the KEYS"):
        shard.run("return redis.call('HGET', 'other', 'f')", KEYS.meta)
    assert shard.run("return redis.call('HGET', KEYS[1], 'epoch')", KEYS.meta) == EPOCH.encode()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            "local answer = redis.call('SINTER', KEYS[1]) return answer",
            Failure(b"ERR Unknown command called from script", 1),
        ),
        ("return redis.pcall('SINTER', KEYS[1])", Failure(b"ERR Unknown command called from script")),
        (
            "\nlocal x\nreturn x + 1",
            Failure(b"ERR user_script:3: attempt to perform arithmetic on local 'x' (a nil value)", 3),
        ),
        (
            "return nowhere",
            Failure(b"ERR user_script:1: Script attempted to access nonexistent global variable 'nowhere'", 1),
        ),
        ("return {1.9, -1.9, true, false, 'x', nil, 'y'}", [1, -1, 1, None, b"x"]),
        ("return {1, {2, {3, nil, 4}}, 1e30}", [1, [2, [3]], -(1 << 63)]),
        ("return redis.call('HMGET', KEYS[1], 'epoch', 'none')", [EPOCH.encode(), None]),
        ("return type(redis.call('HGET', KEYS[1], 'none'))", b"boolean"),
    ],
)
def test_answers(shard: Shard, text: str, answer: Answer) -> None:
    assert shard.run(text, KEYS.meta) == answer


def test_nothing_is_undone(shard: Shard) -> None:
    failure = shard.run("redis.call('HSET', KEYS[1], 'f', 'v') redis.call('LLEN', KEYS[1])", KEYS.meta)
    assert failure == Failure(b"WRONGTYPE Operation against a key holding the wrong kind of value", 1)
    assert shard.server.command("HGET", KEYS.meta, "f") == b"v"


def test_a_snapshot_is_what_was_there(shard: Shard) -> None:
    shard.push("a")
    before, dump = shard.space.snapshot(), shard.space.dump()
    for _ in range(2):
        shard.push("b")
        shard.ask(dispatch.dispatch(KEYS, EPOCH, [""], limit=10, max_attempts=3).at(NOW))
        shard.ask(by_id.cancel(KEYS, EPOCH, "a").at(NOW))
        changed = shard.space.dump()
        assert changed != dump
        shard.space.restore(before)
        assert shard.space.dump() == dump


def test_dumps_of_one_state_are_one_value() -> None:
    one, other = Shard(), Shard(shuffle=7)
    one.push("a", "b", "c")
    other.push("c", "a", "b")
    assert {one.space.dump()} == {other.space.dump()}
    other.push("d")
    assert one.space.dump() != other.space.dump()


def test_a_scan_by_pages_meets_all_that_stays() -> None:
    shard = Shard(shuffle=3)
    ids = {f"id{number}".encode() for number in range(100)}
    shard.push(*(id.decode() for id in ids))
    cursor, met = b"0", []
    for page in range(100):
        cursor, found = shard.server.command("HSCAN", KEYS.task, cursor, "COUNT", 7)
        met += found[::2]
        if cursor == b"0":
            break
        shard.server.command("HDEL", KEYS.task, f"passing{page - 1}")
        shard.server.command("HSET", KEYS.task, f"passing{page}", A)
    assert ids <= set(met)
    assert len(met) == len(set(met)), "nothing that stays is met twice"


def test_more_words_than_the_stack_of_lua_takes(shard: Shard) -> None:
    ids = [f"id{number}" for number in range(3000)]
    for start in range(0, len(ids), 1000):
        words = [word for id in ids[start : start + 1000] for word in (id, 0, A, "keep", 0)]
        answers = shard.ask(by_id.push_unique(KEYS, EPOCH, words).at(NOW))
        assert answers == [b"ok", *[b"pushed"] * 1000]
    assert len(shard.ask(by_id.get_many(KEYS, EPOCH, ids).at(NOW))) == 3001
    assert len(shard.run("return redis.call('HGETALL', KEYS[1])", KEYS.task)) == 6000


def test_a_page_of_fewer_than_no_ids_ends(shard: Shard) -> None:
    """A real server would be held until it is told to kill the script."""
    shard.push("a", "b")
    page = listing.page(KEYS, EPOCH, "scheduled", listing.Span(), count=-1).at(NOW)
    assert shard.ask(page)[-1] == []
