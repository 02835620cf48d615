"""A topic is in the list of its shard's topics from its first task on, whichever script brings that task."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from shardq.core.calls import by_id, observe, resharding, transfer
from shardq.core.calls.request import Call, Word
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, Shard, State, at, meta, raw, record

A = record()
NOW = at(0)


def listed(shard: Shard, call: Call[Any], before: State | None = None) -> set[str]:
    shard.seed({"meta": meta()} | (before or {}))
    shard.run(call)
    return shard.topics()


def test_push(shard: Shard, keys: ShardKeys) -> None:
    tasks: list[Word] = [word for id in ("a", "mail/a", "mail/b", "sms/a") for word in (id, -5, A)]
    assert listed(shard, by_id.push(keys, EPOCH, tasks).at(NOW)) == {"", "mail", "sms"}


def test_push_keeps_the_count_of_what_was_dispatched(shard: Shard, keys: ShardKeys) -> None:
    push = by_id.push(keys, EPOCH, ["mail/a", -5, A]).at(NOW)
    assert listed(shard, push, {"topics": {"mail": "7"}}) == {"mail"}
    assert shard.state()["topics"] == {"mail": "7"}


def test_push_of_ids_that_are_taken(shard: Shard, keys: ShardKeys) -> None:
    push = by_id.push(keys, EPOCH, ["mail/a", -5, A]).at(NOW)
    assert listed(shard, push, {"task": {"mail/a": A}, "due": {"mail/a": 1}}) == set()


@pytest.mark.parametrize(("id", "topic"), [("a", ""), ("mail/a", "mail")])
def test_push_unique(shard: Shard, keys: ShardKeys, id: str, topic: str) -> None:
    call = by_id.push_unique(keys, EPOCH, [id, -5, A, "keep", 0]).at(NOW)
    assert listed(shard, call) == {topic}


def test_push_unique_of_an_id_that_belongs_elsewhere(shard: Shard, keys: ShardKeys) -> None:
    call = by_id.push_unique(keys, EPOCH, ["mail/a", -5, A, "keep", 0], earlier="1").at(NOW)
    assert listed(shard, call) == set()


def test_a_push_whose_answer_was_lost(shard: Shard, keys: ShardKeys) -> None:
    call = by_id.push(keys, EPOCH, ["mail/a", -5, A]).at(NOW).after_loss()
    assert listed(shard, call) == {"mail"}


def test_put(shard: Shard, keys: ShardKeys) -> None:
    parcel = f"7|{keys.shard}|due|5|0|0|".encode() + raw(A)
    moving = [resharding.MovingTask(id, parcel) for id in ("mail/a", "sms/a")]
    put = resharding.put(keys, EPOCH, moving).at(NOW)
    # the mark of the second was used up: it was put, and has gone since
    assert listed(shard, put, {"staged": {"mail/a|7": ""}}) == {"mail"}


@pytest.mark.parametrize("kind", ["due", "dead"])
def test_adopt(shard: Shard, keys: ShardKeys, kind: str) -> None:
    def adopt(*ids: str) -> Call[Any]:
        words: list[Word] = [word for id in ids for word in (id, -5, A, kind, "", "")]
        return transfer.adopt(keys, EPOCH, words, once="7-50").at(NOW)

    idle = {"meta": meta(**{"idle/mail": "1:2", "idle/sms": "1:2"}), "topics": {"mail": "7"}}
    assert listed(shard, adopt("a", "mail/a"), idle) == {"", "mail"}
    assert shard.state()["topics"] == {"mail": "7"}
    assert {field for field in shard.state()["meta"] if field[:5] == "idle/"} == {"idle/sms"}
    assert listed(shard, adopt("mail/a"), {"task": {"mail/a": A}, "due": {"mail/a": 1}}) == set()


def test_restore(shard: Shard, keys: ShardKeys) -> None:
    call = observe.restore(keys, EPOCH, "mail/a").at(NOW)
    assert listed(shard, call, {"task": {"mail/a": A}}) == {"mail"}


def test_who_may_not_list_a_topic_pushes_all_the_same(shard: Shard, keys: ShardKeys) -> None:
    stored = raw(record("a"))
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "-hsetnx", "allchannels", "allkeys")
    with shard.as_user(user) as asker:
        assert asker.ask(by_id.push(keys, EPOCH, ["a", 5, stored]).at(NOW)) == ["ok"]
        call = by_id.push_unique(keys, EPOCH, ["b", 5, stored, "keep", 0]).at(NOW)
        assert asker.ask(call) == ["ok", "pushed"]
    shard.do("ACL", "DELUSER", user)
    assert shard.state()["due"] == {"a": 5, "b": 5}
