"""cancel_tag: pages of all records of a shard, of which those with the tag go unless somebody holds them."""

from __future__ import annotations

import pytest

from shardq.core.calls import by_id, listing
from shardq.core.calls.listing import TagPage
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.record import RAW, encode_record
from shardq.core.model.task import Outcome
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record, text
from tests.support.heads import encode_head

TAGGED = record("a", tags=("red", "big"))
PLAIN = record("b", nonce=7)
OTHERS = {
    "payload": record("red"),
    "header": record("b", tags=("bored",)),
    "longer": record("b", tags=("red!", "redder")),
    "odd": "\x20red",
    "short": "\x18\x00\x99red",
    "broken": "\x18\x00\x04\xc1red",
    "list": "\x18\x00\x03red",
    "half a length": "\x18\x00",
    "nothing": "",
    "named": text(encode_record(RAW, b"", encode_head(headers={"red": "red"}))),
    "a nonce": text(encode_record(RAW, b"", encode_head(nonce=int.from_bytes(b"red!")))),
    "a text": "\x18\x00\x07\x81\xa1t\xa3red",
    "keys": "\x18\x00\x09\x81\xa1t\x81\xa3red\xc3",
}
"""Records of tasks without the tag, in which its letters stand somewhere."""


def page(shard: Shard, keys: ShardKeys, cursor: str = "0", *, tag: str = "red", count: int = 1000) -> TagPage:
    return shard.run(listing.cancel_tag(keys, EPOCH, tag, cursor, count=count).at(NOW))


FULL: State = {
    "task": {f"{state}{n}": TAGGED if n else PLAIN for n in range(3) for state in ("s", "r", "l", "d")},
    "due": {f"s{n}": T + n for n in range(3)},
    "ready/": [f"r{n}" for n in range(3)],
    "leased": {f"l{n}": T + 900 for n in range(3)},
    "lease": {f"l{n}": "0:0::tok" for n in range(3)} | {"s1": "1:0::", "r1": "0:1::", "d1": "5:0::", "s0": "2:0::"},
    "dead": {f"d{n}": T - n for n in range(3)},
    "why": {f"d{n}": "boom" for n in range(3)},
    "ghost": {"r1": "2"},
    "seen": {"s1": T + 500},
}

LEFT: State = {
    "meta": meta(**{"ghosts/": 2}),
    "task": {id: record for id, record in FULL["task"].items() if id[0] == "l" or id[1] == "0"},
    "due": {"s0": T},
    "ready/": ["r0", "r1", "r2"],
    "leased": FULL["leased"],
    "lease": {"l0": "0:0::tok", "l1": "0:0::tok", "l2": "0:0::tok", "s0": "2:0::"},
    "dead": {"d0": T},
    "why": {"d0": "boom"},
    "ghost": {"r1": "3", "r2": "1"},
    "seen": FULL["seen"],
}


@pytest.mark.parametrize("tag", ["red", "big"])
def test_tasks_in_every_state(shard: Shard, keys: ShardKeys, tag: str) -> None:
    shard.seed({"meta": meta()} | FULL)
    found = page(shard, keys, tag=tag)
    assert (found.cursor, found.looked_at) == ("0", 12)
    assert found.bytes == sum(len(id) + len(stored) for id, stored in FULL["task"].items())
    assert sorted(found.cancelled) == ["d1", "d2", "r1", "r2", "s1", "s2"]
    assert sorted(found.running) == ["l1", "l2"]
    assert shard.state() == LEFT
    # twice is harmless
    again = page(shard, keys, tag=tag)
    assert (again.looked_at, again.cancelled, sorted(again.running)) == (6, [], ["l1", "l2"])
    assert shard.state() == LEFT


def test_it_leaves_what_cancel_leaves(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | FULL)
    for id in ("d1", "d2", "r1", "r2", "s1", "s2"):
        assert shard.run(by_id.cancel(keys, EPOCH, id).at(NOW)) == Outcome.CANCELLED
    assert shard.state() == LEFT


def test_a_revoked_lease(shard: Shard, keys: ShardKeys) -> None:
    """The task was replaced while it ran: it is scheduled again, and goes."""
    shard.seed({"meta": meta(), "task": {"a": TAGGED}, "due": {"a": T + 50}, "lease": {"a": "0:0::~tok"}})
    assert page(shard, keys).cancelled == ["a"]
    assert shard.state() == {"meta": meta()}


@pytest.mark.parametrize("others", [0, 1, 3, 10])
def test_a_tag_at_the_end_of_a_long_head(shard: Shard, keys: ShardKeys, others: int) -> None:
    """Also behind a multiple of 256 bytes."""
    tags = (*(f"{n}{'y' * 100}" for n in range(others)), "z")
    shard.seed({"meta": meta(), "task": {"a": record("", tags=tags), "b": PLAIN}, "due": {"a": T, "b": T}})
    assert page(shard, keys, tag="z").cancelled == ["a"]


@pytest.mark.parametrize("tag", ["red", "x", "\xc1", "\x04"])
def test_letters_of_the_tag_elsewhere(shard: Shard, keys: ShardKeys, tag: str) -> None:
    before: State = {"meta": meta(), "task": OTHERS, "due": dict.fromkeys(OTHERS, T)}
    shard.seed(before)
    found = page(shard, keys, tag=tag)
    assert (found.looked_at, found.cancelled, found.running) == (len(OTHERS), [], [])
    assert shard.state() == before


@pytest.mark.parametrize("tag", ["a-b", "a.b", "a+", "[a", "(a", "%d", "^a", "a$", "*"])
def test_a_tag_is_no_pattern(shard: Shard, keys: ShardKeys, tag: str) -> None:
    shard.seed(
        {"meta": meta(), "task": {"a": record("", tags=("red", tag)), "b": record("", tags=("axb", "aaa", "7"))}}
    )
    assert page(shard, keys, tag=tag).cancelled == ["a"]


@pytest.mark.parametrize(("tasks", "count"), [(0, 10), (1, 10), (3000, 1), (3000, 100), (3000, 1000)])
def test_pages(shard: Shard, keys: ShardKeys, tasks: int, count: int) -> None:
    tagged = {f"t{n}": TAGGED for n in range(0, tasks, 2)}
    plain = {f"p{n}": PLAIN for n in range(1, tasks, 2)}
    shard.seed({"meta": meta()} | ({"task": tagged | plain, "due": dict.fromkeys(tagged | plain, T)} if tasks else {}))
    cursor, pages, cancelled = "", 0, list[str]()
    while cursor != "0":
        found = page(shard, keys, cursor or "0", count=count)
        assert found.looked_at <= max(20 * count, 600), "a page is bounded"
        cursor, pages = found.cursor, pages + 1
        cancelled += found.cancelled
        if pages == 2:
            # a lost answer: the page is asked for again
            cancelled += page(shard, keys, cursor, count=count).cancelled
    assert sorted(cancelled) == sorted(tagged)
    assert shard.state().get("task", {}) == plain
    assert pages > tasks / count / 20


def test_thousands_in_one_page(shard: Shard, keys: ShardKeys) -> None:
    """A server may be set up to keep many records in one piece, which comes as one page."""
    tagged = {f"t{n}": TAGGED for n in range(9000)}
    shard.seed({"meta": meta(), "task": tagged, "ready/": list(tagged)})
    cancelled, cursor = list[str](), ""
    while cursor != "0":
        found = page(shard, keys, cursor or "0", count=20_000)
        cursor = found.cursor
        cancelled += found.cancelled
    assert sorted(cancelled) == sorted(tagged)
    assert len(shard.state()["ghost"]) == 9000


def test_a_place_in_another_process_of_the_server(shard: Shard, keys: ShardKeys) -> None:
    """A place in a hash holds for one process: after a failover the same number would be elsewhere."""
    shard.seed({"meta": meta(), "task": {f"p{n}": PLAIN for n in range(3000)}})
    first = page(shard, keys, count=100)
    number, at, run = first.cursor.partition("@")
    assert (number != "0", at, len(run)) == (True, "@", 40)
    assert page(shard, keys, f"{number}@{'0' * 40}", count=100) == first
    assert page(shard, keys, number, count=100) == first
    assert page(shard, keys, first.cursor, count=100) != first
