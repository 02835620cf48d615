"""Claims and forwards of more than one piece: several lists, of which a thousand entries are looked at, dropped ones
too; many records, which are read in chunks; and an id that is in its list twice.
"""

from __future__ import annotations

import uuid

import pytest
import redis

from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import Shard, State, T, meta, record
from tests.lua.test_claim import claim, expiring
from tests.lua.test_forward import THEIRS, forward

A = record("a")


def gone(topic: str, count: int) -> list[str]:
    """Entries whose records are gone."""
    return [f"{topic}/gone{n}" for n in range(count)]


@pytest.mark.parametrize(
    ("first", "second", "dropped", "given"),
    [
        (999, 0, 999, ["b/1"]),
        (1000, 0, 1000, []),
        (1100, 0, 1000, []),
        (500, 1100, 1000, []),
        (500, 499, 999, ["b/1"]),
        (500, 500, 1000, []),
        (0, 1000, 1000, []),
        (0, 999, 999, ["b/1"]),
        (3, 40, 43, ["b/1", "b/2"]),
    ],
)
@pytest.mark.parametrize("max", [1000, 2])
def test_a_thousand_entries(
    shard: Shard, keys: ShardKeys, first: int, second: int, dropped: int, given: list[str], max: int
) -> None:
    before: State = {
        "meta": meta(),
        "task": {"b/1": A, "b/2": A},
        "ready/a": gone("a", first),
        "ready/b": [*gone("b", second), "b/1", "b/2"],
    }
    shard.seed({name: value for name, value in before.items() if value})
    found = shard.run(claim(keys, {"a": max, "b": max}, max=max))
    assert (found.ids, found.dropped) == (given, dropped)
    assert found.left == [shard.do("LLEN", keys.ready(topic)) for topic in "ab"]
    assert sum(found.left) == first + second + 2 - dropped - len(given)


def test_each_task_has_its_own_past(shard: Shard, keys: ShardKeys) -> None:
    """Also behind the first chunk, and behind entries that are dropped."""
    ids = [f"i{n:02}" for n in range(40)]
    before: State = {
        "meta": meta(),
        "task": {id: expiring(T) if n % 5 == 3 else record(id) for n, id in enumerate(ids)},
        "ready/": [entry for id in ids for entry in (id, f"{id}gone")],
        "lease": {id: f"{n}:{n % 3}::" for n, id in enumerate(ids) if n % 4},
    }
    kept = [id for n, id in enumerate(ids) if n % 5 != 3]
    shard.seed(before)
    found = shard.run(claim(keys, max=100))
    assert found.ids == kept
    assert found.records == [record(id).encode() for id in kept]
    assert found.pasts == {n: (int(id[1:]), int(id[1:]) % 3) for n, id in enumerate(kept) if int(id[1:]) % 4}
    shard.seed(before)
    assert shard.run(forward(keys)).sent == len(kept)
    assert shard.state()[THEIRS] == kept
    assert shard.state()["dead"].keys() == set(ids) - set(kept)


@pytest.mark.parametrize("stored", [A, expiring(T), "odd"])
def test_an_id_that_is_there_twice_is_met_once(shard: Shard, keys: ShardKeys, stored: str) -> None:
    before: State = {"meta": meta(), "task": {"a": stored, "b": A}, "ready/": ["a", "b", "a", "b"]}
    given = ["a", "b"] if stored == A else ["b"]
    shard.seed(before)
    assert shard.run(claim(keys)).ids == given
    state = shard.state()
    assert (state.get("dead", {}), "ready/" in state) == ({} if stored == A else {"a": T}, False)
    shard.seed(before)
    assert shard.run(forward(keys)).sent == len(given)
    assert len(shard.state()[THEIRS]) == len(given)


@pytest.mark.parametrize("topics", [("",), ("none", ""), ("", "none")])
def test_who_may_not_trim_a_list_drops_nothing_of_it(shard: Shard, keys: ShardKeys, topics: tuple[str, ...]) -> None:
    """Or a ghost would be forgotten, and its entry given out."""
    before: State = {
        "meta": meta(),
        "task": {"a": A, "late": expiring(T)},
        "due": {"a": T + 9000},
        "ready/": ["a", "late"],
        "ghost": {"a": "1"},
    }
    shard.seed(before)
    user = f"u{uuid.uuid4().hex}"
    shard.do("ACL", "SETUSER", user, "on", "nopass", "+@all", "-ltrim", "allchannels", "allkeys")
    with shard.as_user(user) as asker, pytest.raises(redis.ResponseError):
        asker.ask(claim(keys, dict.fromkeys(topics, 9)))
    shard.do("ACL", "DELUSER", user)
    assert shard.state() == before
