"""How many entries a claim looks at: a thousand of all its lists together, dropped ones too."""

from __future__ import annotations

import pytest

from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import Shard, State, meta, record
from tests.lua.test_claim import claim

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
