"""stats() marks a shard that can't be read, and reports the others."""

from __future__ import annotations

import pytest

from shardq import Engine, Task
from shardq.core.layout.keys import shard_keys
from tests.support.servers import Servers


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_shard_that_can_t_be_seen_says_why(url: str, name: str) -> None:
    with Engine(url, name=name, shards=4) as engine, Servers(url) as servers:
        ids = engine.push_many([Task(n, delay=600) for n in range(100)])
        sick = next(s for s in engine.stats().shards if s.scheduled)
        keys = shard_keys(name, sick.shard)
        servers.ask(keys.slot, "SET", keys.leased, "not a zset")
        stats = engine.stats()
        assert "WRONGTYPE" in str(stats.shards[sick.shard].error)
        assert stats.shards[sick.shard].scheduled is None, "unknown is no zero"
        assert (stats.missing, stats.is_blind, stats.shown(7)) == ((sick.shard,), False, "≥ 7")
        reasons = engine.health().reasons
        assert reasons[0].startswith(f"shard {sick.shard} could not be seen, the totals are without: ")
        assert stats.scheduled == len(ids) - (sick.scheduled or 0)
        assert [s.error for s in stats.shards if s.shard != sick.shard] == [None] * 3
        servers.ask(keys.slot, "DEL", keys.leased)
        assert engine.stats().scheduled == len(ids)
