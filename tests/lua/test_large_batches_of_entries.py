"""A large batch of entries makes a table of a small key, and leaves no filler entry behind."""

from __future__ import annotations

import uuid

import pytest
import redis

from shardq.core.calls import consume
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, named, record

MANY = [f"id{number}" for number in range(20)]
FEW = MANY[:5]

A = record("a")


def claimed(shard: Shard, keys: ShardKeys, ids: list[str], token: str) -> None:
    claim = shard.run(consume.claim(keys, EPOCH, {"": 100}, max=100, lease_ms=9000, token=token).at(NOW))
    assert claim.ids == ids


def encoding(shard: Shard, key: str) -> str:
    return str(shard.do("OBJECT", "ENCODING", key))


@pytest.mark.parametrize(("ids", "hash", "zset"), [(FEW, "listpack", "listpack"), (MANY, "hashtable", "skiplist")])
def test_claim(shard: Shard, keys: ShardKeys, ids: list[str], hash: str, zset: str) -> None:
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, A), "ready/": ids})
    claimed(shard, keys, ids, "tok")
    assert shard.state()["leased"] == dict.fromkeys(ids, T + 9000)
    assert shard.state()["lease"] == dict.fromkeys(ids, "0:0::tok")
    assert (encoding(shard, keys.lease), encoding(shard, keys.leased)) == (hash, zset)


def test_a_few_at_a_time(shard: Shard, keys: ShardKeys) -> None:
    """It is the size that counts, not that of the batch."""
    shard.seed({"meta": meta(), "task": dict.fromkeys(MANY, A)})
    for start in range(0, 20, 5):
        shard.do("RPUSH", keys.ready(""), *MANY[start : start + 5])
        claimed(shard, keys, MANY[start : start + 5], f"tok{start}")
    assert set(shard.state()["leased"]) == set(shard.state()["lease"]) == set(MANY)
    assert (encoding(shard, keys.lease), encoding(shard, keys.leased)) == ("hashtable", "skiplist")


@pytest.mark.parametrize("ids", [FEW, MANY])
@pytest.mark.parametrize("command", ["hset", "zadd"])
def test_refused_nothing_is_left(shard: Shard, keys: ShardKeys, command: str, ids: list[str]) -> None:
    ready: State = {"meta": meta(), "task": dict.fromkeys(ids, A), "ready/": ids}
    shard.seed(ready)
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", f"-{command}", "allchannels", "allkeys")
    try:
        with shard.as_user(user) as asker, pytest.raises(redis.ResponseError):
            asker.ask(consume.claim(keys, EPOCH, {"": 100}, max=100, lease_ms=9000, token="tok").at(NOW))
    finally:
        shard.do("ACL", "DELUSER", user)
    assert shard.state() == ready


@pytest.mark.parametrize("command", ["hdel", "zrem"])
def test_a_filler_that_may_not_be_removed(shard: Shard, keys: ShardKeys, command: str) -> None:
    """It is no id, and costs nobody his tasks."""
    shard.seed({"meta": meta(), "task": dict.fromkeys(MANY, A), "ready/": MANY})
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", f"-{command}", "allchannels", "allkeys")
    with shard.as_user(user) as asker:
        call = consume.claim(keys, EPOCH, {"": 100}, max=100, lease_ms=9000, token="tok").at(NOW)
        assert named(asker.ask(call))["ids"].split("\n") == MANY
    shard.do("ACL", "DELUSER", user)
    state = shard.state()
    for key in ("leased", "lease"):
        assert state[key].keys() - {"", "\1" * 65} == set(MANY)


@pytest.mark.parametrize("command", ["hset", "zadd"])
def test_refused_each_goes_back_to_its_own_list(shard: Shard, keys: ShardKeys, command: str) -> None:
    lists = {"ready/": ["a", "b"], "ready/mail": ["mail/c", "mail/d", "mail/e"], "ready/x": ["x/f", "x/g"]}
    ready: State = {"meta": meta(), "task": dict.fromkeys([id for ids in lists.values() for id in ids], A), **lists}
    shard.seed(ready)
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", f"-{command}", "allchannels", "allkeys")
    shares = {"": 2, "none": 9, "mail": 2, "x": 2}
    call = consume.claim(keys, EPOCH, shares, max=100, lease_ms=9000, token="tok").at(NOW)
    with shard.as_user(user) as asker, pytest.raises(redis.ResponseError, match=r"NOPERM|permission|can't run this"):
        asker.ask(call)
    shard.do("ACL", "DELUSER", user)
    assert shard.state() == ready
