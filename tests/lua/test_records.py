"""Records as scripts read them: which can be read, an expiry that becomes an instant, the nonce by which a resend knows
its own, and bounds by bytes.
"""

from __future__ import annotations

from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch
from shardq.core.calls.request import Word
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import RAW, encode_record
from tests.lua.shard import EPOCH, NOW, Shard, T, meta, record, text
from tests.support.heads import encode_head

MIB = 1 << 20

TAIL = b"\0\1\x80payload"
"""Behind a first byte: a head that is an empty map, if that byte says that there is one."""

READABLE = {f"{first:#04x}": bytes([first]) + TAIL for first in (0x10, 0x17, 0x18, 0x1F)} | {
    "a head with names that nobody knows": b"\x18\0\7\x81\xa3new\xc3\x01payload",
    "a head and no payload": b"\x18\0\1\x80",
    "a nonce of 0": b"\x18\0\4\x81\xa1n\0payload",
    "no attempt allowed": b"\x18\0\4\x81\xa1m\0payload",
    "a payload that begins as no msgpack ends": b"\x18\0\1\x80\xda",
    "no payload": b"\x10",
}

UNREADABLE = {
    f"{first:#04x}, of another version": bytes([first]) + TAIL for first in (0x00, 0x0F, 0x20, 0x28, 0xFF)
} | {
    "nothing": b"",
    "no length of its head": b"\x18",
    "half a length": b"\x18\0",
    "a head that ends too early": b"\x18\0\x02\x80",
    "a long head that ends too early": b"\x18\x01\0\x80",
    "a nonce that ends too early": b"\x18\0\x08\x81\xa1n\xce\0\0\0",
    "a head that is a number": b"\x18\0\1\7payload",
    "a head that is no msgpack": b"\x18\0\1\xc1payload",
}

ODD = [("readable", each) for each in READABLE.values()] + [("unreadable", each) for each in UNREADABLE.values()]


@pytest.mark.parametrize(("kind", "stored"), ODD, ids=[*READABLE, *UNREADABLE])
def test_what_can_be_read_is_given_out_and_the_rest_is_dead(
    shard: Shard, keys: ShardKeys, kind: str, stored: bytes
) -> None:
    before = {"meta": meta(), "task": {"a": text(stored), "b": record("b")}, "ready/": ["a", "b"]}
    shard.seed(before)
    claim = consume.claim(keys, EPOCH, {"": 9}, max=9, lease_ms=50, token="tok").at(NOW)
    given = shard.run(claim).ids
    assert given == (["a", "b"] if kind == "readable" else ["b"])
    assert shard.state().get("why") == (None if kind == "readable" else {"a": "format"})
    shard.seed(before)
    to = keys.ready("theirs")
    shard.run(dispatch.forward(keys, EPOCH, "", to=to, side="right", limit=9).at(NOW))
    assert len(shard.state()["ready/theirs"]) == len(given)
    assert shard.state().get("why") == (None if kind == "readable" else {"a": "format"})


@pytest.mark.parametrize("stored", [*READABLE.values(), *UNREADABLE.values()], ids=[*READABLE, *UNREADABLE])
@pytest.mark.parametrize("unique", [False, True])
def test_a_push_stores_what_it_is_given(shard: Shard, keys: ShardKeys, stored: bytes, unique: bool) -> None:
    """Also what it can't read: whoever meets it says so."""
    shard.seed({"meta": meta()})
    words: list[Word] = ["a", 0, stored, *(("keep", 0) if unique else ())]
    call = by_id.push_unique if unique else by_id.push
    shard.ask(call(keys, EPOCH, words).at(NOW))
    assert shard.state()["task"] == {"a": text(stored)}


def headed(size: int, more: bytes = b"", names: int = 1) -> bytes:
    """A record with a head of so many bytes, which begins with ``more``."""
    rest = b"\xa1z\xda" + (size - len(more) - 6).to_bytes(2) + b"h" * (size - len(more) - 6)
    return b"\x18" + size.to_bytes(2) + bytes([0x80 + names]) + more + rest + b"payload"


REASON = b"\xa1e\xda\0\4boom"

REASONS: dict[str, tuple[bytes, bytes, bytes]] = {
    "without a head": (b"\x12payload", b"boom", b"\x1a\0\x0a\x81\xa1e\xda\0\4boompayload"),
    "with one": (b"\x19\0\4\x81\xa1m\7payload", b"boom", b"\x19\0\x0d\x82\xa1e\xda\0\4boom\xa1m\7payload"),
    "with a reason": (
        b"\x19\0\x0d\x82\xa1e\xda\0\4boom\xa1m\7payload",
        b"bang!",
        b"\x19\0\x0e\x82\xa1e\xda\0\5bang!\xa1m\7payload",
    ),
    "no reason in place of one": (b"\x18\0\7\x81\xa1e\xda\0\1xp", b"", b"\x18\0\6\x81\xa1e\xda\0\0p"),
    "fourteen names": (b"\x18\0\1\x8ep", b"", b"\x18\0\6\x8f\xa1e\xda\0\0p"),
    "as long as it can be": (b"\x10p", b"y" * 2048, b"\x18\x08\x06\x81\xa1e\xda\x08\0" + b"y" * 2048 + b"p"),
    "its end": (b"\x10p", b"n" + b"y" * 2048, b"\x18\x08\x06\x81\xa1e\xda\x08\0" + b"y" * 2048 + b"p"),
    "no letter in two": (
        b"\x10p",
        "ż".encode() + b"y" * 2047,
        b"\x18\x08\x05\x81\xa1e\xda\x07\xff" + b"y" * 2047 + b"p",
    ),
    "what is not text": (b"\x10p", b"\xff\xfe", b"\x18\0\x08\x81\xa1e\xda\0\2\xff\xfep"),
    "what begins in a letter": (b"\x10p", b"\x80" * 2048, b"\x18\x08\x06\x81\xa1e\xda\x08\0" + b"\x80" * 2048 + b"p"),
    "an empty head": (b"\x1f\0\1\x80p", b"", b"\x1f\0\6\x81\xa1e\xda\0\0p"),
    "a head and no payload": (b"\x18\0\1\x80", b"", b"\x18\0\6\x81\xa1e\xda\0\0"),
    "512 bytes": (b"\x10p", b"y" * 506, b"\x18\2\0\x81\xa1e\xda\1\xfa" + b"y" * 506 + b"p"),
    "just room": (headed(65_526), b"boom", headed(65_535, REASON, 2)),
    "no room": (headed(65_527), b"boom", headed(65_527)),
    "fifteen names": (b"\x18\0\1\x8fp", b"boom", b"\x18\0\1\x8fp"),
    "a head that is no map": (b"\x18\0\1\7p", b"boom", b"\x18\0\1\7p"),
    "a head that is cut off": (b"\x18\0\x09\x81", b"boom", b"\x18\0\x09\x81"),
    "a reason that is cut off": (b"\x18\0\5\x81\xa1e\xda\0", b"boom", b"\x18\0\5\x81\xa1e\xda\0"),
    "a head that is cut off by a byte": (b"\x18\0\2\x80", b"boom", b"\x18\0\2\x80"),
    "of another version": (b"\x20\0\1\x80p", b"boom", b"\x20\0\1\x80p"),
    "of the version before": (b"\x0fp", b"boom", b"\x0fp"),
    "nothing": (b"", b"boom", b""),
}


@pytest.mark.parametrize(("before", "reason", "after"), REASONS.values(), ids=REASONS)
def test_a_retry_notes_its_reason(shard: Shard, keys: ShardKeys, before: bytes, reason: bytes, after: bytes) -> None:
    """Where it can; an older build passes over it, as over each name that it does not know."""
    shard.seed({"meta": meta(), "task": {"a": text(before)}, "leased": {"a": T + 9}, "lease": {"a": "0:0::tok"}})
    retry = consume.SettleRetry("a", "tok", 5, text(reason), 9)
    assert shard.run(consume.settle(keys, EPOCH, [], [retry]).at(NOW)) == {}
    state = shard.state()
    assert (state["task"], state["lease"], state["due"]) == ({"a": text(after)}, {"a": "1:0::"}, {"a": T + 5})
    found = shard.run(by_id.get(keys, EPOCH, "a").at(NOW))
    assert found is not None
    assert (found.failures, found.reason is not None) == (1, after != before and reason != b"")


def test_reasons_are_noted_up_to_a_mebibyte_of_records(shard: Shard, keys: ShardKeys) -> None:
    ids = ("a", "b", "c")
    shard.seed(
        {"meta": meta(), "task": dict.fromkeys(ids, record("x" * (MIB // 2))), "leased": dict.fromkeys(ids, T + 9)}
    )
    shard.do("HSET", keys.lease, *(word for id in ids for word in (id, "0:0::tok")))
    retries = [consume.SettleRetry(id, "tok", 5, "boom", 9) for id in ids]
    shard.run(consume.settle(keys, EPOCH, [], retries).at(NOW))
    found = [shard.run(by_id.get(keys, EPOCH, id).at(NOW)) for id in ids]
    assert [(each.state, each.failures, each.reason) for each in found if each] == [
        ("scheduled", 1, "boom"), ("scheduled", 1, "boom"), ("scheduled", 1, None),
    ]  # fmt: skip


HEADERS = {"trace": "0123456789abcdef" * 20}

HEADS = {
    "alone": {},
    "behind others": {"max_attempts": 5, "headers": {"a": "b" * 30}},
    "behind more than 255 bytes": {"headers": HEADERS},
    # with an instant
    **{f"of {19 + size} bytes": {"headers": {"a": "b" * size}} for size in (236, 237, 238)},
}


@pytest.mark.parametrize("more", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("payload", [b"", b"x" * 1000])
@pytest.mark.parametrize("unique", [False, True])
def test_an_expiry_becomes_an_instant(
    shard: Shard, keys: ShardKeys, more: dict[str, Any], payload: bytes, unique: bool
) -> None:
    shard.seed({"meta": meta()})
    for expires, becomes in ((-500, T + 501), (T + 70, T + 70)):
        given, kept = (encode_record(RAW, payload, encode_head(expires=each, **more)) for each in (expires, becomes))
        words: list[Word] = ["a", 0, given, *(("replace", 0) if unique else ())]
        call = by_id.push_unique if unique else by_id.push
        shard.do("DEL", keys.task, keys.due)
        shard.ask(call(keys, EPOCH, words).at(T * 1000 + 1))
        # the fields of a head have no order
        assert sorted(shard.state()["task"]["a"]) == sorted(text(kept))


def stored(nonce: int | None, tags: tuple[str, ...]) -> bytes:
    return encode_record(RAW, b"a", encode_head(nonce=nonce, tags=tags))


NONCES = [0x01020304, 0x01020305, 0x01020404, 0x01030304, 0x02020304, 1, 2**32 - 1, 70_000, 0x78017802]
"""The last one has the letter x."""


@pytest.mark.parametrize("nonce", NONCES)
@pytest.mark.parametrize("tags", [(), ("red",)])
def test_a_window_has_the_mark_of_its_push(shard: Shard, keys: ShardKeys, nonce: int, tags: tuple[str, ...]) -> None:
    """As the contract says it, whatever else the head has."""
    shard.seed({"meta": meta()})
    words: list[Word] = ["a", 0, stored(nonce, tags), "keep", 60_000]
    assert shard.ask(by_id.push_unique(keys, EPOCH, words).at(NOW)) == ["ok", "pushed"]
    assert shard.state()["seen"] == {"a": T + 60_000 - (nonce % 1023 + 1) / 2048}


@pytest.mark.parametrize("nonce", NONCES[1:])
@pytest.mark.parametrize("tags", [(), ("red",)])
def test_a_resend_knows_its_own(shard: Shard, keys: ShardKeys, nonce: int, tags: tuple[str, ...]) -> None:
    for present, answer in ((nonce, "pushed"), (NONCES[0], "kept:scheduled"), (None, "kept:scheduled")):
        shard.seed({"meta": meta(), "task": {"a": text(stored(present, tags))}, "due": {"a": T}})
        words: list[Word] = ["a", 0, stored(nonce, tags), "keep", 0]
        assert shard.ask(by_id.push_unique(keys, EPOCH, words).at(NOW).after_loss()) == ["ok", answer]


def sized(bytes: int) -> str:
    return "\x10" + "x" * (bytes - 1)


BOUNDS = {
    "the second makes 1 MiB": ([MIB // 2, MIB // 2, 9], 2),
    "one byte is left": ([MIB // 2, MIB // 2 - 1, 9], 3),
    "the first is larger": ([MIB + 1, 9, 9], 1),
    "the fifth makes it, behind the first four": ([MIB // 5 + 1] * 5 + [9], 5),
    "small ones": ([MIB // 100] * 100, 100),
}


@pytest.mark.parametrize(("sizes", "count"), BOUNDS.values(), ids=BOUNDS)
def test_answers_end_with_the_record_that_makes_1_mib(
    shard: Shard, keys: ShardKeys, sizes: list[int], count: int
) -> None:
    ids = [f"i{n:03}" for n in range(len(sizes))]
    before = {"meta": meta(), "task": dict(zip(ids, map(sized, sizes), strict=True))}
    shard.seed(before | {"due": dict.fromkeys(ids, T)})
    assert len(shard.ask(by_id.get_many(keys, EPOCH, ids).at(NOW))) == count + 1
    shard.seed(before | {"ready/": ids})
    claim = consume.claim(keys, EPOCH, {"": 500}, max=500, lease_ms=50, token="tok").at(NOW)
    assert shard.run(claim).ids == ids[:count]
    assert shard.state().get("ready/", []) == ids[count:]
    shard.seed(before | {"ready/": ids})
    to = keys.ready("theirs")
    assert shard.run(dispatch.forward(keys, EPOCH, "", to=to, side="right", limit=500).at(NOW)).sent == count
    assert shard.state().get("ready/", []) == ids[count:]
