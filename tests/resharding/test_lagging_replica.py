"""Commands that wait for an announced resize while a replica is behind say that, in words of their own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.server import Server
from shardq import Engine, Unavailable
from shardq.core.layout.keys import control_keys, shard_keys

COMMANDS: dict[str, Callable[[Engine], object]] = {
    "pause": lambda engine: engine.pause("mail"),
    "limit": lambda engine: engine.limit("mail", rate=5),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_topic_during_a_resize_that_waits_for_a_replica(
    own_server: Server, replica: Server, name: str, command: str
) -> None:
    with Engine(own_server.url, name=name, shards=2) as engine:
        moving, topology = shard_keys(name, 0).moved, control_keys(name).topology
        own_server.ask("HSET", moving, "mine", "n1|1|due|253402300799999|0|0|\x10x")
        own_server.ask("HSET", topology, "pending", 3, "epoch", engine.topology.epoch + 1)
        replica.pause()
        try:
            with pytest.raises(Unavailable, match="and so do pauses, limits and routes: see that the replicas") as told:
                COMMANDS[command](engine)
        finally:
            replica.resume()
        assert "number of shards" not in str(told.value)
        COMMANDS[command](engine)
        assert engine.topology.shards == 3
