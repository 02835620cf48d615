"""A claim of topics with limits: each task is leased under its own permit, the others under the token."""

from __future__ import annotations

from shardq.core.calls import consume
from shardq.core.calls.consume import SettleAck
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record
from tests.lua.test_claim import expiring
from tests.lua.test_settle import settle

A, LIMITED = record("a"), record("a", max_attempts=7)

READY: State = {
    "meta": meta(),
    "task": {"a": A, "b": A, "mail/a": A, "mail/late": expiring(T), "mail/b": LIMITED, "mail/c": A, "sms/a": A}
    | {"sms/b": LIMITED, "x/a": A},
    "ready/": ["a", "b"],
    "ready/mail": ["mail/a", "mail/late", "mail/gone", "mail/b", "mail/c"],
    "ready/sms": ["sms/a", "sms/b"],
    "ready/x": ["x/a"],
    "lease": {"mail/a": "1:2:5:", "x/a": "0:1::"},
}


def test_names_of_leases(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(READY)
    shares = {"": 2, "mail": 2, "sms": 9, "x": 9}
    call = consume.claim(
        keys,
        EPOCH,
        shares,
        max=9,
        lease_ms=50,
        token="tok",
        max_attempts={"mail": 4},
        permits={"mail": 3, "sms": 9},
    ).at(NOW)
    claimed = shard.run(call)
    assert claimed.ids == ["a", "b", "mail/a", "mail/b", "sms/a", "sms/b", "x/a"]
    assert claimed.pasts == {2: (1, 2), 6: (0, 1)}
    leases = {
        "a": "0:0::tok",
        "b": "0:0::tok",
        "mail/a": "1:2:4:tok#3",
        "mail/b": "0:0:7:tok#4",
        "sms/a": "0:0::tok#9",
        "sms/b": "0:0:7:tok#10",
        "x/a": "0:1::tok",
    }
    assert shard.state()["lease"] == leases
    # who has the name of the permit holds the lease
    acks = [SettleAck(id, entry.rpartition(":")[2]) for id, entry in leases.items()]
    assert set(shard.run(settle(keys, *(SettleAck(id, "tok") for id in leases)))) == {
        "mail/a",
        "mail/b",
        "sms/a",
        "sms/b",
    }
    assert shard.run(settle(keys, *acks[2:6])) == {}
    assert set(shard.state()["task"]) == {"mail/late", "mail/c"}
