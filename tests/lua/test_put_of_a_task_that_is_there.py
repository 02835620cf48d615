"""put leaves a task that is there already as it is, and uses up its mark."""

from __future__ import annotations

from shardq.core.calls import resharding
from shardq.core.calls.resharding import MovingTask
from shardq.core.layout.keys import ShardKeys
from tests.lua.shard import EPOCH, NOW, Shard, State, T, meta, record

OLD, NEW = record("old"), record("new")

PARCELS = [MovingTask(id, f"n1|5|due|{T + 500}|0|0|{OLD}".encode()) for id in ("a", "b")]


def test_one_that_is_ready_here_and_one_that_is_not(shard: Shard, keys: ShardKeys) -> None:
    ready: State = {"meta": meta(), "task": {"a": NEW}, "ready/": ["a"]}
    shard.seed(ready | {"staged": {"a|n1": "", "b|n1": "", "c|n1": ""}})
    assert shard.ask(resharding.put(keys, EPOCH, PARCELS).at(NOW)) == ["ok"]
    after = ready | {
        "meta": meta(wake_at=T + 500),
        "task": {"a": NEW, "b": OLD},
        "due": {"b": T + 500},
        "staged": {"c|n1": ""},
    }
    assert shard.state() == after
    # and again
    assert shard.ask(resharding.put(keys, EPOCH, PARCELS).at(NOW)) == ["ok"]
    assert shard.state() == after
