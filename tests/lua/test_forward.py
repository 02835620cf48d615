"""forward moves payloads from a ready list to a list of the user's in the same slot, byte for byte."""

from __future__ import annotations

import uuid
from typing import Literal

import pytest
import redis

from shardq.core.calls import dispatch as calls
from shardq.core.calls.dispatch import Forwarded
from shardq.core.calls.request import Call
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import JSON, encode_record
from shardq.errors import ServerFault
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record
from tests.lua.test_claim import LIMITED, ODD, expiring
from tests.support.heads import encode_head

A, B, C = record("a"), record("b"), record("c")

# their list is among the keys of the shard, so that it is in its slot and is looked at with the rest
THEIRS = "ready/their list"


def forward(
    keys: ShardKeys, topic: str = "", *, side: Literal["left", "right"] = "right", limit: int = 1000
) -> Call[Forwarded]:
    return calls.forward(keys, EPOCH, topic, to=keys.prefix + THEIRS, side=side, limit=limit).at(NOW)


def sent(count: int, before: int = 0) -> dict[str, str]:
    return meta(forwarded=count + before)


TABLE: dict[str, tuple[State, Forwarded, State]] = {
    "nothing is ready": ({THEIRS: ["x"]}, Forwarded(0, 0), {}),
    "some": (
        {"ready/": ["b", "a"], "task": {"a": A, "b": B, "c": C}, "due": {"c": T}, THEIRS: ["x"]},
        Forwarded(2, 0),
        {"ready/": None, "task": {"c": C}, THEIRS: ["x", "b", "a"], "meta": sent(2)},
    ),
    "their past goes too, and a head is no part of the payload": (
        {
            "ready/": ["a", "d"],
            "task": {"a": A, "d": LIMITED},
            "lease": {"a": "0:1::", "d": "2:0:7:", "z": "1:1::"},
            "meta": sent(5),
        },
        Forwarded(2, 0),
        {"ready/": None, "task": None, "lease": {"z": "1:1::"}, THEIRS: ["a", "d"], "meta": sent(2, 5)},
    ),
    "the only one with a past": (
        {"ready/": ["a"], "task": {"a": A}, "lease": {"a": "0:1::"}},
        Forwarded(1, 0),
        {"ready/": None, "task": None, "lease": None, THEIRS: ["a"], "meta": sent(1)},
    ),
    "an empty payload, and one of bytes": (
        {"ready/": ["a", "b"], "task": {"a": record(), "b": "\x10\x00\udcff\r\n"}},
        Forwarded(2, 0),
        {"ready/": None, "task": None, THEIRS: ["", "\x00\udcff\r\n"], "meta": sent(2)},
    ),
    "an id without a record is dropped": (
        {"ready/": ["x", "a"], "task": {"a": A}},
        Forwarded(1, 0),
        {"ready/": None, "task": None, THEIRS: ["a"], "meta": sent(1)},
    ),
    "stale entries are dropped, as many as are counted": (
        {"ready/": ["a", "b", "a"], "task": {"a": A, "b": B}, "due": {"b": T + 5}, "ghost": {"a": "1", "b": "2"}},
        Forwarded(1, 0),
        {"ready/": None, "task": {"b": B}, "ghost": {"b": "1"}, THEIRS: ["a"], "meta": sent(1)},
    ),
    "only stale entries": (
        {"ready/": ["a"], "task": {"a": A}, "due": {"a": T + 5}, "ghost": {"a": "1"}},
        Forwarded(0, 0),
        {"ready/": None, "ghost": None},
    ),
    "what can't be sent takes nobody's place": (
        {
            "ready/": ["g", "x", "z", *(f"i{n}" for n in range(1002))],
            "task": {"z": expiring(T), "g": A} | {f"i{n}": A for n in range(1002)},
            "ghost": {"g": "1"},
        },
        Forwarded(997, 5),
        {
            "ready/": [f"i{n}" for n in range(997, 1002)],
            "task": {"z": expiring(T), "g": A} | {f"i{n}": A for n in range(997, 1002)},
            "ghost": None,
            "dead": {"z": T},
            "why": {"z": "expired"},
            THEIRS: ["a"] * 997,
            "meta": sent(997) | {"died/": "1"},
        },
    ),
    "a record of an unknown version, and one that has expired": (
        {"ready/": ["x", "a", "y"], "task": {"x": ODD, "a": A, "y": expiring(T)}},
        Forwarded(1, 0),
        {
            "ready/": None,
            "task": {"x": ODD, "y": expiring(T)},
            "dead": {"x": T, "y": T},
            "why": {"x": "format", "y": "expired"},
            THEIRS: ["a"],
            "meta": sent(1) | {"died/": "2"},
        },
    ),
}


@pytest.mark.parametrize("line", TABLE.values(), ids=TABLE)
def test_forward(shard: Shard, keys: ShardKeys, line: tuple[State, Forwarded, State]) -> None:
    before, says, after = line
    before = {"meta": meta()} | before
    shard.seed(before)
    assert shard.run(forward(keys)) == says
    assert shard.state() == {name: value for name, value in (before | after).items() if value is not None}


def test_the_bare_answer_and_the_other_end(shard: Shard, keys: ShardKeys) -> None:
    shard.seed(
        {
            "meta": meta(),
            "ready/mail": ["mail/a", "mail/b", "mail/c"],
            "task": {"mail/a": A, "mail/b": B, "mail/c": C},
            THEIRS: ["x"],
        }
    )
    assert shard.ask(forward(keys, "mail", side="left", limit=2)) == ["ok", 2, 1]
    assert shard.state()[THEIRS] == ["b", "a", "x"]
    assert shard.state()["ready/mail"] == ["mail/c"]


def test_twice_sends_what_is_next_and_then_nothing(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "ready/": ["a", "b"], "task": {"a": A, "b": B}})
    assert [shard.run(forward(keys, limit=1)).sent for _ in range(3)] == [1, 1, 0]
    assert shard.state() == {"meta": sent(2), THEIRS: ["a", "b"]}


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_list_of_the_wrong_type_changes_nothing(
    shard: Shard, keys: ShardKeys, side: Literal["left", "right"]
) -> None:
    before = {
        "meta": meta(),
        "ready/": ["a", "x", "g"],
        "task": {"a": A, "x": ODD},
        "ghost": {"g": "1"},
        THEIRS: ["x"],
    }
    shard.seed(before)
    shard.do("DEL", keys.prefix + THEIRS)
    shard.do("SET", keys.prefix + THEIRS, "not a list")
    with pytest.raises(ServerFault, match="WRONGTYPE"):
        shard.run(forward(keys, side=side))
    assert shard.state() == before | {THEIRS: "a string"}


@pytest.mark.parametrize(
    ("command", "side"), [("hdel", "left"), ("ltrim", "left"), ("rpush", "right"), ("lpush", "left")]
)
@pytest.mark.parametrize("ghosts", [{}, {"g": "1"}, {"g": "2"}])
def test_who_may_not_remove_hands_nothing_over(
    shard: Shard, keys: ShardKeys, command: str, side: Literal["left", "right"], ghosts: dict[str, str]
) -> None:
    """Or the task would be here, too. And who may not hand over drops nothing."""
    before: State = {"meta": meta(), "ready/": [*ghosts, "a", "b"], "task": {"a": A, "b": B}}
    if ghosts:
        before["ghost"] = ghosts
    shard.seed(before)
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", f"-{command}", "allchannels", "allkeys")
    with shard.as_user(user) as asker, pytest.raises(redis.ResponseError):
        asker.ask(forward(keys, side=side))
    shard.do("ACL", "DELUSER", user)
    assert shard.state() == before


def test_a_thousand_and_one_more(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(1001)]
    shard.seed({"meta": meta(), "ready/": ids, "task": {id: record(id) for id in ids}})
    assert shard.run(forward(keys)) == Forwarded(1000, 1)
    assert shard.state()[THEIRS] == ids[:1000]
    assert shard.run(forward(keys)) == Forwarded(1, 0)
    assert shard.state() == {"meta": sent(1001), THEIRS: ids}


@pytest.mark.parametrize("small_ones", [0, 1, 30])
def test_a_bounded_number_of_bytes(shard: Shard, keys: ShardKeys, small_ones: int) -> None:
    small = {f"s{n}": A for n in range(small_ones)}
    large = {f"l{n}": record("x" * (600 << 10)) for n in range(5)}
    shard.seed({"meta": meta(), "ready/": [*small, *large], "task": small | large})
    steps: list[Forwarded] = []
    while not steps or steps[-1].left:
        steps.append(shard.run(forward(keys)))
    assert steps == [Forwarded(small_ones + 2, 3), Forwarded(2, 1), Forwarded(1, 0)]
    assert [len(payload) for payload in shard.state()[THEIRS]] == [1] * small_ones + [600 << 10] * 5


@pytest.mark.parametrize("kind", ["stale", "expired", "removed"])
def test_a_bounded_number_of_entries_that_can_not_be_sent(shard: Shard, keys: ShardKeys, kind: str) -> None:
    ids = [f"i{n}" for n in range(2500)]
    before: State = {"meta": meta(), "ready/": [*ids, "a", "b"], "task": {"a": A, "b": B}}
    if kind == "expired":
        before["task"] |= dict.fromkeys(ids, expiring(T))
    if kind == "stale":
        before["task"] |= dict.fromkeys(ids, A)
        before["ghost"] = dict.fromkeys(ids, "1")
    shard.seed(before)
    steps = [shard.run(forward(keys, limit=1)) for _ in range(4)]
    assert steps == [Forwarded(0, 1502), Forwarded(0, 502), Forwarded(1, 1), Forwarded(1, 0)]
    state = shard.state()
    assert state[THEIRS] == ["a", "b"]
    assert "ghost" not in state
    assert state.get("dead", {}) == (dict.fromkeys(ids, T) if kind == "expired" else {})


def test_entries_of_a_stream(shard: Shard, keys: ShardKeys) -> None:
    headed = encode_record(JSON, 1, encode_head(headers={"to": "é"})).decode("utf-8", "surrogateescape")
    shard.seed({"meta": meta(), "ready/": ["a", "b", "x"], "task": {"a": A, "b": headed}})
    stream = keys.prefix + "ready/their stream"
    call = calls.forward(keys, EPOCH, "", to=stream, side="stream", limit=1000).at(NOW)
    assert shard.run(call) == Forwarded(2, 0)
    (_, first), (_, second) = shard.do("XRANGE", stream, "-", "+")
    assert first == ["id", "a", "payload", "a"]
    assert second == ["id", "b", "payload", "1", "headers", '{"to":"é"}'.encode().decode("utf-8", "surrogateescape")]
    shard.do("RPUSH", keys.ready(""), "c")
    shard.do("HSET", keys.task, "c", C)
    assert shard.run(call) == Forwarded(1, 0)
    assert shard.do("XLEN", stream) == 3


def test_a_stream_is_trimmed(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"n{n}" for n in range(900)]
    shard.seed({"meta": meta(), "ready/": ids, "task": dict.fromkeys(ids, A)})
    stream = keys.prefix + "ready/their stream"
    shard.do("CONFIG", "SET", "stream-node-max-entries", "10")
    try:
        call = calls.forward(keys, EPOCH, "", to=stream, side="stream", limit=1000, maxlen=50).at(NOW)
        assert shard.run(call) == Forwarded(900, 0)
        assert len(shard.do("XRANGE", stream, "-", "+")) >= 50
        # one alone
        shard.do("RPUSH", keys.ready(""), "n")
        shard.do("HSET", keys.task, "n", A)
        call = calls.forward(keys, EPOCH, "", to=stream, side="stream", limit=9, maxlen=20).at(NOW)
        assert shard.run(call) == Forwarded(1, 0)
    finally:
        shard.do("CONFIG", "SET", "stream-node-max-entries", "100")
    kept = [fields[1] for _, fields in shard.do("XRANGE", stream, "-", "+")]
    assert 20 <= len(kept) <= 30
    assert kept == [*ids, "n"][-len(kept) :]
    shard.do("DEL", stream)


@pytest.mark.parametrize(("maxlen", "left"), [(None, 1), (None, 2), (100, 1), (100, 2)])
def test_a_stream_takes_all_or_none(shard: Shard, keys: ShardKeys, maxlen: int | None, left: int) -> None:
    before: State = {"meta": meta(), "ready/": ["a", "b", "c"], "task": {"a": A, "b": B, "c": C}}
    shard.seed(before)
    stream = keys.prefix + "ready/their stream"
    # so many ids are left
    shard.do("XADD", stream, f"18446744073709551615-{2**64 - 1 - left}", "f", "v")
    call = calls.forward(keys, EPOCH, "", to=stream, side="stream", limit=1000, maxlen=maxlen).at(NOW)
    with pytest.raises(ServerFault):
        shard.run(call)
    assert shard.do("XLEN", stream) == 1
    shard.do("DEL", stream)
    assert shard.state() == before
    # none is left, and an entry was dropped before that
    before |= {"ready/": ["g", *before["ready/"]], "ghost": {"g": "1"}}
    shard.seed(before)
    shard.do("XADD", stream, "18446744073709551615-18446744073709551615", "f", "v")
    with pytest.raises(ServerFault, match="exhausted"):
        shard.run(call)
    assert shard.do("XLEN", stream) == 1
    shard.do("DEL", stream)
    assert shard.state() == before
    before |= {"ready/": ["g", "x", *before["ready/"]], "task": before["task"] | {"x": ODD}, "ghost": {"g": "1"}}
    shard.seed(before)
    shard.do("SET", stream, "not a stream")
    with pytest.raises(ServerFault, match="WRONGTYPE"):
        shard.run(call)
    shard.do("DEL", stream)
    assert shard.state() == before
