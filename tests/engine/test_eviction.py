"""A full server that evicts loses tasks without an error, and stats() says so; other full servers refuse pushes."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine, PushError, Task
from shardq.errors import OutOfMemory
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.states import STATES, claim, put
from tests.support.waiting import wait_until

FULL = {"appendonly": "yes", "maxmemory": "6mb"}


def filled(engine: Engine, server: Server, *, until_evicted: bool) -> int:
    """Pushes until the server is full; answers how many were stored as far as anybody was told."""
    stored = 0
    for _ in range(200):
        try:
            stored += len(engine.push_many([Task("x" * 200, delay=9_000) for _ in range(500)]))
        except PushError as exc:
            refused = {type(reason) for reason in exc.failed.values()}
            if until_evicted or refused != {OutOfMemory}:
                raise
            return stored
        if until_evicted and server.ask("INFO", "stats")["evicted_keys"]:
            return stored
    pytest.fail("a server of 6 MB takes 100,000 tasks")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_evicted_tasks_are_a_problem(
    engines: Engines, server_binary: Path, name: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(server_binary, options=FULL | {"maxmemory-policy": policy}) as server:
        engine = engines.opened(server.url, name=name, shards=8)
        engine.start()
        health = engine.health()
        assert (health.ok, health.reasons) == (True, [])
        assert [f"maxmemory-policy {policy}" in text for text in health.warnings] == [True]
        filled(engine, server, until_evicted=True)
        health = engine.health()
        (problem,) = [reason for reason in health.reasons if "evicted" in reason]
        assert problem.startswith(f"{server.address} has evicted keys since it started")
        assert f"(maxmemory-policy is {policy} now): `shardq doctor --all` tells what is missing" in problem
        assert [f"maxmemory-policy {policy}" in text for text in health.warnings] == [True]
        caplog.clear()
        for _ in range(2):
            engines.opened(server.url, name=f"{name}x").close()
        said = [record.getMessage() for record in caplog.records if record.name == "shardq.advice"]
        # at open, at most once: one that is slow to answer is not waited for
        assert {text for text in said if "90%" not in text} <= {problem}
        server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        health = engine.health()
        evicted = f"{server.address} has evicted keys"
        assert [reason for reason in health.reasons if reason.startswith(evicted)]
        assert health.warnings == []
        server.ask("CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "volatile-lru")
        wait_until(lambda: engine.health().ok, "the next heartbeat is there: the last one may be among the evicted")
        health = engine.health()
        assert (health.reasons, [text.startswith(evicted) for text in health.warnings]) == ([], [True])
        server.ask("CONFIG", "RESETSTAT")
        health = engine.health()
        assert (health.ok, health.warnings) == (True, [])
        engine.close()


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_a_server_that_evicts_what_expires_loses_nothing(
    engines: Engines, server_binary: Path, name: str, policy: str
) -> None:
    with Server(server_binary, options=FULL | {"maxmemory-policy": policy}) as server:
        engine = engines.opened(server.url, name=name, shards=4)
        due = engine.push_many([Task(n) for n in range(300)])
        stored = filled(engine, server, until_evicted=False)
        health = engine.health()
        assert health.warnings == []
        assert [text for text in health.reasons if "evict" in text] == []
        (full,) = [text for text in health.reasons if "uses more than 90% of its maxmemory" in text]
        assert "when that is full it refuses pushes" in full
        assert health.stats.scheduled >= len(due) + stored
        assert server.ask("INFO", "stats")["evicted_keys"] == 0
        engine.start()
        consumer = engine.consumer()
        given = claim(consumer, len(due))
        assert sorted(delivery.id for delivery in given) == sorted(due)
        consumer.ack(given)
        engine.close()


def test_no_key_of_ours_expires(engines: Engines, single: Server, name: str) -> None:
    """Those that do are what the volatile- policies evict."""
    engine = engines.opened(single.url, name=name, shards=2)
    engine.start()
    engine.limit("calls", rate=50, concurrency=2)
    engine.push("x", topic="calls")
    assert claim(engine.consumer("calls"), 1)
    engine.push("x", id="mine", dedup=60, topic="other")
    for state in STATES:
        put(engine, state, topic=state)
    assert engine.consumer("nothing").claim(wait=0.2) == []
    with Servers(single.url) as servers:
        keys = wait_until(lambda: list(servers.held(name)), "there are keys")
        assert {servers.ask(0, "TTL", key) for key in keys} == {-1}
    engine.close()
