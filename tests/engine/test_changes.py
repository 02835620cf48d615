"""The last changes of operators: each command that changes something leaves one line, and nothing depends on it."""

from __future__ import annotations

import os

from cluster.server import Server
from shardq import Engine, Task
from shardq.engine.engine_wide import KEPT
from tests.support.engines import Engines


def test_each_command_of_an_operator_is_noted(engine: Engine) -> None:
    engine.push_many([Task(n, delay=3600, topic="mail") for n in range(3)])
    engine.pause("mail")
    engine.resume("mail")
    engine.limit("mail", rate=100)
    engine.limit("mail", None)
    engine.forward("sms", to="redis://:secret9@10.0.0.7:6379/0#list")
    engine.forward("sms", to=None)
    engine.configure(max_attempts=3)
    engine.every("poll", interval=3600)
    engine.schedule("poll").pause()
    engine.schedule("poll").resume()
    engine.schedule("poll").remove()
    engine.cancel_all(topic="mail")
    engine.cancel_all(topic="mail")
    engine.purge("mail")
    engine.resize(engine.stats().shards[-1].shard + 2)
    found = engine.changes()
    assert [change.what for change in reversed(found)][:-1] == [
        "topic mail: paused",
        "topic mail: resumed",
        "topic mail: limits: rate 100",
        "topic mail: limits: none",
        found[-5].what,
        "topic sms: forwarded no more",
        "configured: max_attempts=3",
        "schedule poll: paused",
        "schedule poll: resumed",
        "schedule poll: removed",
        "cancelled 3 tasks: topic mail",
        "topic mail: purged of 0 tasks",
    ]
    assert "secret9" not in found[-5].what
    assert "10.0.0.7" in found[-5].what
    assert found[0].what.startswith("resized from ")
    assert str(os.getpid()) in found[0].by


def test_the_last_hundred_are_kept(engine: Engine) -> None:
    for n in range(KEPT // 2 + 5):
        engine.limit("mail", rate=n + 1)
        engine.limit("mail", None)
    found = engine.changes()
    assert len(found) == KEPT
    assert found[0].at >= found[-1].at


def test_a_change_is_made_where_it_can_not_be_noted(engines: Engines, own_server: Server, name: str) -> None:
    """As the key has another type, here; a server that is full refuses it likewise."""
    engine = engines.opened(own_server.url, name=name, shards=1)
    own_server.ask("SET", f"shardq:{{{name}}}:changes", "something else")
    engine.pause("mail")
    assert engine.stats().topics["mail"].paused
