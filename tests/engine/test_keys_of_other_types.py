"""A key of a shard that another program has overwritten: errors name it and its shard, and the verdict is not ok."""

from __future__ import annotations

import re

import pytest

from cluster.server import Server
from shardq import Engine, ServerFault, Task
from shardq.core.layout.keys import shard_keys

BY_PUSHES = ("due", "leased", "lease", "dead", "why", "ghost", "seen", "moved", "task", "meta")


@pytest.mark.parametrize("field", [*BY_PUSHES, "topics"])
def test_a_key_of_another_type(own_server: Server, name: str, field: str) -> None:
    with Engine(own_server.url, name=name, shards=2) as engine:
        engine.push_many([Task(n) for n in range(20)])
        key: str = getattr(shard_keys(name, 1), field)
        own_server.ask("DEL", key)
        own_server.ask("SET", key, "of another program")
        told = re.escape(f"another program has written {key} of shard 1: look at it")
        if field in BY_PUSHES:
            id = next(str(n) for n in range(100) if engine.topology.shard_of(str(n)) == 1)
            with pytest.raises(ServerFault, match=told):
                engine.push("x", id=id, delay=3600)
        health = engine.health()
        assert not health.ok
        assert {each.name for each in health.findings if re.search(told, each.text)} == {"unseen_shards"}
