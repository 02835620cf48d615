"""Commands that wait for an announced resize, or for a task that is moving, while a replica is behind say that, in
words of their own.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.server import Server
from shardq import Engine, Outcome, Task, Unavailable
from shardq.core.layout.keys import control_keys, shard_keys
from tests.resharding.migration import moving_ids
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

MINE = "n1|1|due|253402300799999|0|0|\x10x"
"""A task that was taken out of shard 0."""

COMMANDS: dict[str, Callable[[Engine], object]] = {
    "pause": lambda engine: engine.pause("mail"),
    "limit": lambda engine: engine.limit("mail", rate=5),
}


@pytest.mark.parametrize(
    ("command", "timeout"),
    [
        pytest.param("pause", 5.0, id="pause in a short time"),
        pytest.param("limit", 30.0, id="limit"),
    ],
)
def test_a_topic_during_a_resize_that_waits_for_a_replica(
    own_server: Server, replica: Server, name: str, command: str, timeout: float
) -> None:
    with Engine(own_server.url, name=name, shards=2, timeout=timeout) as engine:
        moving, topology = shard_keys(name, 0).moved, control_keys(name).topology
        own_server.ask("HSET", moving, "mine", MINE)
        own_server.ask("HSET", topology, "pending", 3, "epoch", engine.topology.following().stamp)
        replica.pause()
        try:
            with pytest.raises(Unavailable, match="and so do pauses, limits and routes: see that the replicas") as told:
                COMMANDS[command](engine)
        finally:
            replica.resume()
        assert "number of shards" not in str(told.value)
        COMMANDS[command](engine)
        assert engine.topology.shards == 3


@pytest.mark.parametrize(("command", "timeout"), [("cancel", 2.5), ("cancel", 20.0), ("push", 20.0), ("tasks", 20.0)])
def test_a_moving_task_whose_take_is_on_no_replica(
    own_server: Server, replica: Server, name: str, command: str, timeout: float
) -> None:
    """Also where the caller's time is over first."""
    commands: dict[str, Callable[[Engine], object]] = {
        "cancel": lambda engine: engine.cancel(mover),
        "push": lambda engine: engine.push("x", id=mover, delay=FAR_S),
        "tasks": lambda engine: engine.tasks(everything=True),
    }
    (mover, *_) = moving_ids(1, 2)
    with Engine(own_server.url, name=name, shards=1, timeout=timeout) as engine:
        engine.resize(2)
        keys = shard_keys(name, 0), shard_keys(name, 1)
        own_server.ask("HSET", keys[1].staged, f"{mover}|n1", "")
        replica.pause()
        try:
            own_server.ask("HSET", keys[0].moved, mover, MINE)
            with pytest.raises(Unavailable, match="replicas, or the disk, of shard 0, which do not confirm"):
                commands[command](engine)
            assert own_server.ask("EXISTS", keys[1].due) == 0, "it is not where it goes"
        finally:
            replica.resume()
        if command == "cancel":
            assert engine.cancel(mover) is Outcome.CANCELLED
        else:
            commands[command](engine)
            assert own_server.ask("ZCARD", keys[1].due) == 1


def test_moving_that_waits_is_logged(
    own_server: Server, replica: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Engine(own_server.url, name=name, shards=1) as engine:
        engine.push_many([Task("x", delay=FAR_S) for _ in range(20)])
        engine.start()
        replica.pause()
        try:
            engine.resize(2)
            wait_until(lambda: "wait for the replicas, or the disk, of shard" in caplog.text, "it is logged")
        finally:
            replica.resume()
        assert engine.resize(dry_run=True).wait(30)
    assert "moving goes on" in caplog.text
