"""A limit that is changed while many keys wait: it is written at once, and dispatchers look over keys that are full."""

from __future__ import annotations

import time

import pytest

from shardq import Engine, Task
from shardq.core.layout.keys import ShardKeys, shard_keys
from tests.keys.account import TOPIC
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, ready_of
from tests.support.traffic import commands_run
from tests.support.waiting import wait_until
from tests.support.workers import Worker

FULL = 3000


def fill(url: str, name: str, keys: int, *, shards: int) -> None:
    """Two tasks of each key: one is ready, and the other one waits. No dispatcher is left."""
    with Engine(url, name=name, shards=shards, timeout=30.0) as engine:
        engine.start()
        engine.push_many([Task(n, topic=TOPIC, key=f"k{n % keys}") for n in range(2 * keys)])
        wait_until(lambda: ready_of(engine, TOPIC) == keys, "one of each is ready", timeout=60)


def scripts_run(servers: Servers) -> int:
    found = servers.ask_all("INFO", "commandstats")
    return sum(int(said["cmdstat_evalsha"]["calls"]) for said in found)


def cursor_of(servers: Servers, keys: ShardKeys) -> bytes | None:
    found: bytes | None = servers.ask(keys.slot, "HGET", keys.meta, f"cursor/{TOPIC}")
    return found


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_change_is_a_trip_a_shard(url: str, servers: Servers, name: str) -> None:
    """However many keys wait: no lane is looked at. What is pushed then obeys it, and dispatchers do the rest."""
    fill(url, name, FULL, shards=2)
    with Engine(url, name=name, shards=2) as engine:
        ran, did = scripts_run(servers), commands_run(servers)
        engine.limit(TOPIC, per_key=2)
        assert scripts_run(servers) - ran < 10
        assert commands_run(servers) - did < 200
        engine.start()
        wait_until(lambda: ready_of(engine, TOPIC) == 2 * FULL, "two of each are ready", timeout=20)
        for shard in range(2):
            assert cursor_of(servers, shard_keys(name, shard, keyed=True)) is None


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_dispatcher_that_is_killed_in_between(url: str, servers: Servers, name: str) -> None:
    """The next one goes on where it was: within seconds each key has its second place."""
    keys = shard_keys(name, 0, keyed=True)
    fill(url, name, 10 * FULL, shards=1)
    with Worker("tests.support.dispatching", url, name, 1) as first, Engine(url, name=name, shards=1) as engine:
        assert first.said()
        engine.limit(TOPIC, per_key=2)
        wait_until(lambda: cursor_of(servers, keys), "it has begun")
        first.kill()
        placed = servers.ask(keys.slot, "ZCARD", keys.placed)
        assert cursor_of(servers, keys), "it was done before it was killed"
        assert placed < 20 * FULL
        engine.start()
        began = time.monotonic()
        wait_until(lambda: ready_of(engine, TOPIC) == 20 * FULL, "two of each are ready", timeout=60)
        assert time.monotonic() - began < 20
    assert cursor_of(servers, keys) is None


def test_another_change_in_between(running: Engine, servers: Servers, name: str) -> None:
    """What was looked over already is looked over anew."""
    running.push_many([Task(n, topic=TOPIC, key=f"k{n % 500}") for n in range(2000)])
    wait_until(lambda: ready_of(running, TOPIC) == 500, "one of each is ready")
    for per_key in (2, 3):
        running.limit(TOPIC, per_key=per_key)
    wait_until(lambda: ready_of(running, TOPIC) == 1500, "three of each are ready")


def test_a_failed_task_that_its_key_waits_for_no_more(running: Engine) -> None:
    running.limit(TOPIC, per_key=1)
    consumer = running.consumer(TOPIC, lease=60)
    for payload in ("failed", "next"):
        running.push(payload, topic=TOPIC, key="k")
    (failed,) = claim(consumer, 1)
    assert failed.payload == "failed"
    consumer.retry(failed, delay=FAR_S)
    assert consumer.claim(5, wait=0.2) == []
    running.limit(TOPIC, per_key=1, on_failure="skip")
    (following,) = claim(consumer, 1)
    assert following.payload == "next"


def test_many_topics_at_once(running: Engine) -> None:
    """Each has its turn, and a key of another one does not wait for all of them."""
    topics = [f"topic-{n}" for n in range(300)]
    running.configure(topics={topic: {"per_key": 1} for topic in topics})
    running.push_many([Task(n, topic=topic, key="k") for topic in topics for n in range(2)])
    wait_until(lambda: running.stats().ready == 300, "one of each is ready")
    running.configure(topics={topic: {"per_key": 2} for topic in topics})
    running.push(0, topic=TOPIC, key="k")
    wait_until(lambda: running.stats().ready == 601, "all are ready")
