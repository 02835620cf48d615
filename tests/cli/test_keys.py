"""keys, and the state held in the commands that count."""

from __future__ import annotations

import time

from shardq import Engine, Task
from tests.cli.shell import Shell
from tests.support.waiting import wait_until


def test_the_largest_keys(shardq: Shell, engine: Engine) -> None:
    assert shardq.run("keys", "webhook").lines == ["none"]
    engine.limit("webhook", per_key=1)
    engine.push_many([Task(n, topic="webhook", key="customer-7") for n in range(4)])
    engine.push("x", topic="webhook", key="stopped")
    engine.push("x", topic="plain")
    engine.hold("webhook", key="stopped", until=time.time() + 600)
    engine.start()
    wait_until(lambda: (engine.stats().ready, engine.stats().held) == (2, 4), "one is out of each")
    head, _, first, second = [line for line in shardq.run("keys", "webhook").lines if line.strip()]
    assert head.split() == ["key", "held", "oldest", "ready", "leased", "scheduled", "waits", "for", "next", "turn"]
    cells = first.split()
    assert [*cells[:2], *cells[4:7]] == ["customer-7", "3", "1", "0", "0"]
    assert "its ready and leased tasks" in first
    assert first.rstrip().endswith(" -")
    assert "the end of a hold, until 20" in second
    assert second.count(" UTC") == 2
    shown = shardq.run("keys", "webhook", "--limit", "1", "--json").object
    assert shown == {
        "key": "customer-7",
        "scheduled": 0,
        "held": 3,
        "ready": 1,
        "leased": 0,
        "oldest": shown["oldest"],
        "why": "per_key",
        "until": None,
        "next_turn": None,
        "over": 0,
        "failures": 0,
        "reason": None,
    }
    listed = shardq.run("list", "--topic", "webhook", "--key", "customer-7").lines
    assert [line.split()[1] for line in listed[2:6]] == ["ready", "held", "held", "held"]
    refused = shardq.run("keys", "webhook", "--limit", "0")
    assert refused.code == 2


def test_held_where_tasks_are_counted(shardq: Shell, engine: Engine) -> None:
    engine.push("x", topic="plain")
    engine.start()
    wait_until(lambda: engine.stats().ready == 1, "it is ready")
    assert "held" not in shardq.run("stats").out
    engine.push_many([Task(n, topic="webhook", key="customer-7") for n in range(4)])
    wait_until(lambda: engine.stats().held == 3, "three wait for the first")
    lines = [line.split() for line in shardq.run("stats").lines if line.strip()]
    assert lines[1][:6] == ["shard", "scheduled", "held", "ready", "leased", "dead"]
    (total,) = [line for line in lines if line[:1] == ["all"]]
    assert total[1:4] == ["0", "3", "2"]
    (topics,) = [line for line in lines if line[:1] == ["topic"]]
    assert topics[:4] == ["topic", "scheduled", "held", "ready"]
    (webhook,) = [line for line in lines if line[:1] == ["webhook"]]
    assert webhook[1:4] == ["0", "3", "1"]
    assert shardq.run("stats", "--json").object["held"] == 3
    engine.limit("webhook", per_key=2, per_key_rate=5)
    (shown,) = [line for line in shardq.run("topics").lines if line.split()[:1] == ["webhook"]]
    assert shown.rstrip().endswith("at most 2 of each key at once, 5 a second of each key")
