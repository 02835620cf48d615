"""How many entries and records a script reads at a time, and which heads of records it unpacks, on the model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shardq.core.calls import by_id, consume, dispatch, listing, resharding
from shardq.core.calls.listing import Span
from shardq.core.calls.request import Call
from shardq.core.layout.keys import shard_keys
from shardq.core.model.record import RAW, encode_record
from tests.lua.inner import Watched, words_of
from tests.lua.shard import EPOCH, NOW, State, T, meta, text
from tests.support.heads import encode_head

KEYS = shard_keys("x", 1)
MIB = 1 << 20


def claim(max: int = 1000) -> Call[Any]:
    return consume.claim(KEYS, EPOCH, {"": max}, max=max, lease_ms=30_000, token="t").at(NOW)


def forward(limit: int = 1000) -> Call[Any]:
    return dispatch.forward(KEYS, EPOCH, "", to=KEYS.ready("theirs"), side="right", limit=limit).at(NOW)


# ---- records

READERS: dict[str, Callable[[Sequence[str]], Call[Any]]] = {
    "claim": lambda ids: claim(),
    "forward": lambda ids: forward(),
    "get": lambda ids: by_id.get_many(KEYS, EPOCH, ids).at(NOW),
    "take": lambda ids: resharding.take(KEYS, EPOCH, "n1", 2, ids).at(NOW),
}

SIZES = {
    "small ones": ([10] * 520, [4, 8, 24, 72, 200, 200, 12]),
    # half a MiB is read: as many are left as are not quite another half. An eighth is left: there is always one more
    "an eighth of a MiB each": ([MIB // 8] * 20, [4, 3, 1]),
    # 12 have 370,085 bytes. 22 of the same mean have the 678,491 that are left, or hardly one byte less
    "one makes the mean": ([10] * 11 + [369_975] + [10] * 30, [4, 8, 22, 8]),
    # 12 have 699,051 bytes. 6 of the same mean have a byte more than the 349,525 that are left
    "they leave a byte too little": ([10] * 11 + [698_941] + [10] * 10, [4, 8, 5, 5]),
}
"""The sizes of records, and how many are read at a time: as many as have about what is left of a MiB, going by the mean
of those before; but at first 4, then at most twice as many as before, and never more than 200."""


@pytest.mark.parametrize(("sizes", "chunks"), SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("call", READERS.values(), ids=READERS)
def test_chunks_of_records(call: Callable[[Sequence[str]], Call[Any]], sizes: list[int], chunks: list[int]) -> None:
    ids = [f"i{n:03}" for n in range(len(sizes))]
    stored = {id: "\x10" + "x" * (size - 1) for id, size in zip(ids, sizes, strict=True)}
    watched = Watched(KEYS, {"meta": meta(), "task": stored, "ready/": ids, "due": dict.fromkeys(ids, T)})
    read = words_of(watched.made(call(ids)), "HMGET", "task")
    assert [len(words) for words in read] == chunks
    assert list(itertools.chain.from_iterable(read)) == ids[: sum(chunks)]


# ---- entries of lists and sets


@pytest.mark.parametrize("call", [claim(2), forward(2)], ids=["claim", "forward"])
def test_steps_over_entries_that_are_dropped(call: Call[Any]) -> None:
    """As many as are wanted; then always twice as many as were looked at, up to the end of the list."""
    ids = [f"i{n}" for n in range(30)]
    watched = Watched(KEYS, {"meta": meta(), "ready/": ids, "ghost": dict.fromkeys(ids, "1")})
    steps = words_of(watched.made(call), "LRANGE", "ready/")
    assert steps == [["0", "1"], ["2", "5"], ["6", "17"], ["18", "53"]]


@pytest.mark.parametrize("call", [claim(1), forward(1)], ids=["claim", "forward"])
def test_no_step_goes_past_a_thousand_entries(call: Call[Any]) -> None:
    ids = [f"i{n}" for n in range(1001)]
    watched = Watched(KEYS, {"meta": meta(), "ready/": ids, "ghost": dict.fromkeys(ids, "1")})
    steps = words_of(watched.made(call), "LRANGE", "ready/")
    starts = [0, 1, 3, 9, 27, 81, 243, 729]
    assert steps == [[f"{start}", f"{end - 1}"] for start, end in zip(starts, [*starts[1:], 1000], strict=True)]


def test_steps_of_a_page_of_a_rare_topic() -> None:
    """One more than is wanted, to know if anything follows; then twice as many each time."""
    due = {f"i{n}": T + n for n in range(40)} | {"mail/a": T + 12, "mail/b": T + 24}
    page = listing.page(KEYS, EPOCH, "scheduled", Span(), topic="mail", count=1).at(NOW)
    steps = words_of(Watched(KEYS, {"meta": meta(), "due": due}).made(page), "ZRANGE", "due")
    assert steps == [[first, last, "WITHSCORES"] for first, last in (("0", "1"), ("2", "5"), ("6", "13"), ("14", "29"))]


# ---- heads


def stored(payload: bytes = b"", **head: Any) -> str:
    record: str = text(encode_record(RAW, payload, encode_head(**head)))
    return record


NONCE = 4_000_000_000
LONG = {"a": "b" * 300}
"""Headers that are not all letters of a short head."""


def claimed(record: str) -> tuple[State, Call[Any]]:
    return {"task": {"a": record}, "ready/": ["a"]}, claim()


def pushed(record: str) -> tuple[State, Call[Any]]:
    return {}, by_id.push(KEYS, EPOCH, ["a", 0, record]).at(NOW)


def pushed_with_its_id(record: str) -> tuple[State, Call[Any]]:
    return {}, by_id.push_unique(KEYS, EPOCH, ["a", 0, record, "keep", 0]).at(NOW)


def looked_at_for_a_tag(record: str) -> tuple[State, Call[Any]]:
    return {"task": {"a": record}}, listing.cancel_tag(KEYS, EPOCH, "q", "0", count=10).at(NOW)


HEADS: dict[str, tuple[tuple[State, Call[Any]], int]] = {
    "claim: no head": (claimed(stored(b"a")), 0),
    "claim: a nonce": (claimed(stored(b"a", nonce=NONCE)), 0),
    "claim: a nonce, and no payload": (claimed(stored(nonce=NONCE)), 0),
    "claim: a nonce and a limit": (claimed(stored(b"a", nonce=NONCE, max_attempts=3)), 1),
    "push: no head": (pushed(stored(b"xxx")), 0),
    "push: a limit": (pushed(stored(b"xxx", max_attempts=3)), 0),
    "push: a long head": (pushed(stored(b"xxx", headers=LONG)), 0),
    "push: it expires": (pushed(stored(b"xxx", expires=-500)), 1),
    "push_unique, sent once: a nonce and a limit": (pushed_with_its_id(stored(nonce=NONCE, max_attempts=3)), 0),
    "cancel_tag: no head": (looked_at_for_a_tag(stored(b"qqq")), 0),
    "cancel_tag: a limit": (looked_at_for_a_tag(stored(b"qqq", max_attempts=3)), 0),
    "cancel_tag: a long head": (looked_at_for_a_tag(stored(b"qqq", headers=LONG)), 0),
    "cancel_tag: a tag": (looked_at_for_a_tag(stored(b"qqq", tags=("q",))), 1),
    "cancel_tag: another tag": (looked_at_for_a_tag(stored(b"qqq", tags=("other",))), 0),
}
"""What is done with which record, and how many heads are unpacked for that: that of a nonce alone is read without the
unpacker, and where a push looks for an expiry, or a removal for a tag, a head without its letters has none."""


@pytest.mark.parametrize(("asked", "unpacked"), HEADS.values(), ids=HEADS)
def test_heads_that_are_unpacked(asked: tuple[State, Call[Any]], unpacked: int) -> None:
    state, call = asked
    watched = Watched(KEYS, {"meta": meta()} | state)
    made = watched.made(call)
    assert watched.answer[0] == b"ok"
    assert len(words_of(made, "unpack")) == unpacked
