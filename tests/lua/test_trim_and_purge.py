"""trim and purge: tasks removed in bulk."""

from __future__ import annotations

from typing import Literal

import pytest

from shardq.core.calls import listing
from shardq.core.calls.listing import START, Purged, Trimmed
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

A = record("a")


def died(n: int, *, first: int = 0) -> State:
    """Dead tasks d00, d01, … which died one by one, the first of them a second ago."""
    ids = [f"d{i:02}" for i in range(first, n)]
    return {
        "task": dict.fromkeys(ids, A),
        "dead": {id: T - 1000 + i for i, id in enumerate(ids, first)},
        "why": {id: f"why {id}" for id in ids},
        "lease": dict.fromkeys(ids, "2:1::"),
    }


@pytest.mark.parametrize(
    ("age_ms", "keep", "going", "early"),
    [(1001, 5, 0, 0), (1000, 5, 1, 0), (997, 9, 4, 0), (5000, 3, 2, 2), (999, 1, 4, 2), (0, 0, 5, 0)],
)
def test_trim(shard: Shard, keys: ShardKeys, age_ms: int, keep: int, going: int, early: int) -> None:
    shard.seed({"meta": meta()} | died(5))
    assert shard.ask(listing.trim(keys, EPOCH, age_ms=age_ms, keep=keep).at(NOW)) == ["ok", going, early]
    left = {name: value for name, value in died(5, first=going).items() if value}
    counted = ({"trimmed": str(going)} if going else {}) | ({"trimmed_at": str(T)} if early else {})
    assert shard.state() == {"meta": meta() | counted} | left
    # twice is harmless
    assert shard.run(listing.trim(keys, EPOCH, age_ms=age_ms, keep=keep).at(NOW)) == Trimmed(0, 0)


def test_trim_a_chunk_and_one_more(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta(), "dead": {f"i{n}": T for n in range(listing.CHUNK + 1)}})
    removed = [shard.run(listing.trim(keys, EPOCH, age_ms=0, keep=0).at(NOW)).removed for _ in range(3)]
    assert removed == [listing.CHUNK, 1, 0]
    assert shard.state()["meta"]["trimmed"] == str(listing.CHUNK + 1)


FULL: State = {
    "task": dict.fromkeys(["s", "r", "l", "d", "mail/s", "mail/r", "mail/l", "mail/d"], A),
    "due": {"s": T + 5, "mail/s": T + 5},
    "ready/": ["r"],
    "ready/mail": ["mail/r"],
    "leased": {"l": T + 5, "mail/l": T + 5},
    "lease": {"l": "0:0::x", "mail/l": "0:0::x", "d": "3:0::", "mail/r": "0:1::"},
    "dead": {"d": T - 5, "mail/d": T - 5},
    "why": {"d": "boom", "mail/d": "boom"},
    "seen": {"mail/s": T + 900},
}


def test_purge_a_topic_leaves_what_is_held(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | FULL)
    call = listing.purge(keys, EPOCH, "mail", scope="topic", go_on=START).at(NOW)
    assert shard.ask(call) == ["ok", 3, 0, "end", "end"]
    after = shard.state()
    assert after == {
        "meta": meta(),
        "task": dict.fromkeys(["s", "r", "l", "d", "mail/l"], A),
        "due": {"s": T + 5},
        "ready/": ["r"],
        "leased": FULL["leased"],
        "lease": {"l": "0:0::x", "mail/l": "0:0::x", "d": "3:0::"},
        "dead": {"d": T - 5},
        "why": {"d": "boom"},
        "seen": FULL["seen"],
    }
    # twice is harmless
    assert shard.run(call).removed == 0
    assert shard.state() == after


def test_purge_the_default_topic(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | FULL)
    assert shard.run(listing.purge(keys, EPOCH, "", scope="topic", go_on=START).at(NOW)).removed == 3
    assert shard.state()["task"].keys() == {"l", "mail/s", "mail/r", "mail/l", "mail/d"}


def test_purge_everything_goes_through_each_ready_list(shard: Shard, keys: ShardKeys) -> None:
    shard.seed({"meta": meta()} | FULL)
    assert shard.run(listing.purge(keys, EPOCH, "", scope="all", go_on=START).at(NOW)) == Purged(5, 0, "end", "end")
    assert shard.run(listing.purge(keys, EPOCH, "mail", scope="all", go_on=START).at(NOW)).removed == 1
    assert shard.state() == {
        "meta": meta(),
        "task": dict.fromkeys(["l", "mail/l"], A),
        "leased": FULL["leased"],
        "lease": {"l": "0:0::x", "mail/l": "0:0::x"},
        "seen": FULL["seen"],
    }


def test_purge_and_stale_entries(shard: Shard, keys: ShardKeys) -> None:
    """A stale entry of a task that is held goes, the task stays."""
    shard.seed(
        {
            "meta": meta(),
            "task": {"l": A, "r": A},
            "leased": {"l": T + 5},
            "lease": {"l": "0:0::x"},
            "ready/": ["l", "r", "r", "x"],
            "ghost": {"l": "1", "r": "1"},
        }
    )
    assert shard.run(listing.purge(keys, EPOCH, "", scope="topic", go_on=START).at(NOW)).removed == 1
    assert shard.state() == {"meta": meta(), "task": {"l": A}, "leased": {"l": T + 5}, "lease": {"l": "0:0::x"}}


def test_purge_piece_by_piece(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(3 * listing.CHUNK + 1)]
    ready, due, dead = ids[: listing.CHUNK + 1], ids[listing.CHUNK + 1 : -600], ids[-600:]
    shard.seed(
        {
            "meta": meta(),
            "task": dict.fromkeys(ids, A),
            "ready/": ready,
            "due": dict.fromkeys(due, T),
            "dead": dict.fromkeys(dead, T),
        }
    )
    step, removed, calls = START, 0, 0
    while not calls or not step.done:
        step = shard.run(listing.purge(keys, EPOCH, "", scope="topic", go_on=step).at(NOW))
        assert step.removed < 4 * listing.CHUNK
        removed, calls = removed + step.removed, calls + 1
    assert removed == len(ids)
    assert calls > 1
    assert shard.state() == {"meta": meta()}


@pytest.mark.parametrize(("keep", "removed"), [(0, 2), (1, 1), (2, 0)])
def test_when_one_was_removed_for_its_number(shard: Shard, keys: ShardKeys, keep: int, removed: int) -> None:
    shard.seed({"meta": meta(), "task": {"a": record(), "b": record()}, "dead": {"a": T - 5, "b": T - 4}})
    assert shard.ask(listing.trim(keys, EPOCH, age_ms=50, keep=keep).at(NOW)) == ["ok", removed, removed]
    assert shard.state()["meta"].get("trimmed_at") == (f"{T}" if removed else None)


@pytest.mark.parametrize(("ghosts", "left"), [("3", {"a": "2"}), ("2", {"a": "1"}), ("1", None)])
def test_each_entry_is_one_ghost_less(shard: Shard, keys: ShardKeys, ghosts: str, left: dict[str, str] | None) -> None:
    shard.seed({"meta": meta(), "task": {"a": record()}, "due": {"mail/a": T}, "ready/": ["a"], "ghost": {"a": ghosts}})
    shard.run(listing.purge(keys, EPOCH, "", scope="topic", go_on=START).at(NOW))
    state = shard.state()
    assert (state.get("ghost"), "ready/" in state) == (left, False)


@pytest.mark.parametrize("topic", ["", "mail"])
@pytest.mark.parametrize("scope", ["topic", "all"])
def test_what_a_purge_is_about(shard: Shard, keys: ShardKeys, topic: str, scope: Literal["topic", "all"]) -> None:
    """And nothing more, when it has come to the end."""
    ids = ["a", "mail/b", "x/c", "mailbox/d"]
    before: State = {"meta": meta(), "task": dict.fromkeys(ids, record()), "due": dict.fromkeys(ids, T)}
    shard.seed(before)
    ended = Purged(0, 0, "end", "end")
    assert shard.run(listing.purge(keys, EPOCH, topic, scope=scope, go_on=ended).at(NOW)) == ended
    assert shard.state() == before
    shard.run(listing.purge(keys, EPOCH, topic, scope=scope, go_on=START).at(NOW))
    left = {id for id in ids if scope == "topic" and id.rpartition("/")[0] != topic}
    assert shard.state().get("due", {}).keys() == shard.state().get("task", {}).keys() == left


def test_thousands_in_one_page(shard: Shard, keys: ShardKeys) -> None:
    ids = [f"i{n}" for n in range(9000)]
    shard.seed({"meta": meta(), "task": dict.fromkeys(ids, record()), "due": dict.fromkeys(ids, T)})
    call = listing.purge(keys, EPOCH, "", scope="topic", go_on=START).at(NOW)
    call.words = [*call.words[:-1], 20_000]
    assert shard.ask(call) == ["ok", 9000, 0, "end", "end"]
    assert shard.state() == {"meta": meta()}


def test_due_and_dead_end_by_themselves(shard: Shard, keys: ShardKeys) -> None:
    before: State = {
        "meta": meta(),
        "task": dict.fromkeys(("due", "dead"), record()),
        "due": {"due": T},
        "dead": {"dead": T},
    }
    for go_on, gone in ((Purged(0, 0, "end", "0"), "dead"), (Purged(0, 0, "0", "end"), "due")):
        shard.seed(before)
        assert shard.run(listing.purge(keys, EPOCH, "", scope="all", go_on=go_on).at(NOW)).removed == 1
        assert gone not in shard.state()
