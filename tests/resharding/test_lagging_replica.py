"""Commands that wait for an announced resize, or for a task that is moving, while a replica is behind say that, in
words of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.server import Server
from shardq import Engine, Outcome, Unavailable
from shardq.core.layout.keys import control_keys, shard_keys
from tests.resharding.migration import moving_ids
from tests.support.states import FAR_S

MINE = "n1|1|due|253402300799999|0|0|\x10x"
"""A task that was taken out of shard 0."""

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
        own_server.ask("HSET", moving, "mine", MINE)
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


@pytest.mark.parametrize("command", ["cancel", "push", "tasks"])
def test_a_moving_task_whose_take_is_on_no_replica(
    own_server: Server, replica: Server, name: str, command: str
) -> None:
    commands: dict[str, Callable[[Engine], object]] = {
        "cancel": lambda engine: engine.cancel(mover),
        "push": lambda engine: engine.push("x", id=mover, delay=FAR_S),
        "tasks": lambda engine: engine.tasks(everything=True),
    }
    (mover, *_) = moving_ids(1, 2)
    with Engine(own_server.url, name=name, shards=1) as engine:
        engine.resize(2)
        keys = shard_keys(name, 0), shard_keys(name, 1)
        own_server.ask("HSET", keys[1].staged, f"{mover}|n1", "")
        replica.pause()
        try:
            own_server.ask("HSET", keys[0].moved, mover, MINE)
            with pytest.raises(Unavailable, match="out of shard 0, and its replicas do not confirm"):
                commands[command](engine)
            assert own_server.ask("EXISTS", keys[1].due) == 0, "it is not where it goes"
        finally:
            replica.resume()
        if command == "cancel":
            assert engine.cancel(mover) is Outcome.CANCELLED
        else:
            commands[command](engine)
            assert own_server.ask("ZCARD", keys[1].due) == 1
