"""push stores new tasks under new ids."""

from __future__ import annotations

import pytest

from shardq.core.calls import by_id
from shardq.core.calls.request import Word
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Case, Shard, T, meta, record

A, B = record("a"), record("b")


def push(*tasks: Word, now_us: str = NOW) -> Case:
    return Case(lambda keys: by_id.push(keys, EPOCH, list(tasks)).at(now_us), ["ok"])


def case(tasks: Case, answer: list[str], before: dict[str, object], after: dict[str, object]) -> Case:
    return Case(tasks.call, answer, before, after)


CASES = {
    "nothing": case(push(), ["ok"], {}, {}),
    "due now": case(push("a", 0, A), ["ok"], {}, {"due": {"a": T}, "task": {"a": A}, "meta": meta(wake_at=T)}),
    "a delay": case(
        push("a", -1500, A), ["ok"], {}, {"due": {"a": T + 1500}, "task": {"a": A}, "meta": meta(wake_at=T + 1500)}
    ),
    "a delay within a millisecond is rounded up": case(
        push("a", -10, A, now_us=f"{T * 1000 + 1}"),
        ["ok"],
        {},
        {"due": {"a": T + 11}, "task": {"a": A}, "meta": meta(wake_at=T + 11)},
    ),
    "an instant": case(
        push("a", T + 70, A), ["ok"], {}, {"due": {"a": T + 70}, "task": {"a": A}, "meta": meta(wake_at=T + 70)}
    ),
    "an instant long past": case(
        push("a", 1, A), ["ok"], {}, {"due": {"a": 1}, "task": {"a": A}, "meta": meta(wake_at=T)}
    ),
    "an instant after the year 9000": case(
        push("a", 253_402_300_799_999, A),
        ["ok"],
        {},
        {"due": {"a": 253_402_300_799_999}, "task": {"a": A}, "meta": meta(wake_at=253_402_300_799_999)},
    ),
    "several": case(
        push("a", -50, A, "mail/b", -20, B),
        ["ok"],
        {"due": {"c": T + 9}, "task": {"c": A}, "meta": meta(wake_at=T + 9)},
        {"due": {"a": T + 50, "mail/b": T + 20, "c": T + 9}, "task": {"a": A, "mail/b": B, "c": A}},
    ),
    "an empty payload": case(
        push("a", 0, record()), ["ok"], {}, {"due": {"a": T}, "task": {"a": record()}, "meta": meta(wake_at=T)}
    ),
    "one id is taken, so none is stored": case(
        push("a", 0, A, "b", 0, B), ["collided", "b"], {"task": {"b": A}, "ready/": ["b"]}, {}
    ),
    "all are taken": case(
        push("a", 0, A, "b", 0, B), ["collided", "a", "b"], {"task": {"a": B, "b": A}, "due": {"a": T, "b": T}}, {}
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_push(shard: Shard, keys: ShardKeys, case: Case) -> None:
    case.check(shard, keys)


def test_twice_collides_and_changes_nothing(shard: Shard, keys: ShardKeys) -> None:
    call = by_id.push(keys, EPOCH, ["a", -5, A]).at(NOW)
    assert shard.run(call) == []
    state = shard.state()
    assert shard.run(call) == ["a"]
    assert shard.state() == state


def test_resent_after_a_lost_answer_it_is_stored_once(shard: Shard, keys: ShardKeys) -> None:
    call = by_id.push(keys, EPOCH, ["a", -5, A, "b", -6, B]).at(NOW)
    shard.run(call)
    state = shard.state()
    assert shard.run(call.after_loss()) == []
    assert shard.state() == state
    shard.seed({"meta": meta()})
    assert shard.run(call.after_loss()) == []
    assert shard.state() == state


def test_a_thousand(shard: Shard, keys: ShardKeys) -> None:
    tasks: list[Word] = [word for n in range(1000) for word in (f"i{n}", -n, A)]
    assert shard.run(by_id.push(keys, EPOCH, tasks).at(NOW)) == []
    state = shard.state()
    assert state["due"] == {f"i{n}": T + n for n in range(1000)}
    assert state["task"].keys() == state["due"].keys()
    assert len(shard.run(by_id.push(keys, EPOCH, tasks).at(NOW))) == 1000


def test_a_record_of_a_mebibyte_comes_back_byte_for_byte(shard: Shard, keys: ShardKeys) -> None:
    payload = b"\x10" + bytes(range(256)) * 4096
    shard.run(by_id.push(keys, EPOCH, ["a", 0, payload]).at(NOW))
    assert shard.do("HGET", keys.task, "a").encode("utf-8", "surrogateescape") == payload
