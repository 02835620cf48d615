"""The fields of stats(), and its totals, which are the sums over the shards."""

from __future__ import annotations

import time

import pytest

from shardq import Engine, Stats, Task
from shardq.core.calls import observe
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.topology import Limit, Route
from shardq.engine.access import EngineAccess
from shardq.engine.engine_wide import drawn_of_a_shard, whole_of_a_shard
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S, STATES, claim, put, ready_of, state_of
from tests.support.waiting import wait_until


def test_an_engine_that_was_never_used(engine: Engine, name: str) -> None:
    stats = engine.stats()
    assert (stats.name, stats.epoch, len(stats.shards)) == (name, 1, SHARDS)
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
    assert (stats.dispatched, stats.forwarded, stats.topics, stats.rates, stats.head_age) == (0, 0, {}, None, None)
    assert stats.server.startswith(("valkey ", "redis "))
    assert stats.dispatchers == ()
    for number, shard in enumerate(stats.shards):
        assert (shard.shard, shard.poller, shard.poller_error) == (number, "elsewhere", None)
        assert (shard.head_age, shard.late_ms) == (None, None)


def test_every_state_is_counted(running: Engine) -> None:
    for state in STATES:
        put(running, state, topic=state)
    stats = running.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (1, 1, 1, 1)
    assert stats.dispatched == 3
    seen = {
        topic: (each.scheduled, each.ready, each.leased, each.dead, each.dispatched)
        for topic, each in stats.topics.items()
    }
    assert seen == {
        "scheduled": (1, 0, 0, 0, 0),
        "ready": (0, 1, 0, 0, 1),
        "leased": (0, 0, 1, 0, 1),
        "dead": (0, 0, 0, 1, 1),
    }
    assert not any(each.estimated for each in stats.topics.values())
    assert [topic for topic, each in stats.topics.items() if each.oldest_ready is not None] == ["ready"]


def test_totals_are_the_sum_of_the_shards(running: Engine) -> None:
    running.push_many([Task(n, topic=f"t{n % 3}") for n in range(60)])
    running.push_many([Task(n, delay=FAR_S) for n in range(200)])  # some in every shard, as good as certainly
    wait_until(lambda: running.stats().ready == 60, "all due tasks are ready")
    claim(running.consumer("t0"), 20)
    stats = running.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dispatched) == (200, 40, 20, 60)
    topics = {topic: (each.scheduled, each.ready, each.leased) for topic, each in stats.topics.items()}
    assert topics == {"": (200, 0, 0), "t0": (0, 0, 20), "t1": (0, 20, 0), "t2": (0, 20, 0)}
    assert {topic: each.dispatched for topic, each in stats.topics.items()} == {"": 0, "t0": 20, "t1": 20, "t2": 20}
    for field in ("scheduled", "ready", "leased", "dead", "dispatched", "forwarded"):
        assert getattr(stats, field) == sum(getattr(shard, field) for shard in stats.shards)
    for topic, each in stats.topics.items():
        assert each.ready == sum(shard.ready_by_topic.get(topic, 0) for shard in stats.shards)
    less = running.stats(shards=False)
    assert less.shards == []
    assert (less.scheduled, less.ready, less.leased, less.topics.keys()) == (200, 40, 20, stats.topics.keys())
    assert all(shard.scheduled for shard in stats.shards)


def test_the_head_of_a_shard(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=1)
    engine.push_many([Task("x", delay=100), Task("y", delay=200)])
    (shard,) = engine.stats().shards
    assert shard.head_age is not None
    assert -100.002 < shard.head_age < -50  # a due time is rounded up to the ms
    head_age = engine.stats().head_age
    assert head_age is not None
    assert shard.head_age <= head_age < -50
    engine.push("z", at=time.time() - 5)
    (shard,) = engine.stats().shards
    assert shard.head_age is not None
    assert 4 < shard.head_age < 60
    engine.start()
    wait_until(lambda: engine.stats().shards[0].late_ms is not None, "the late one is dispatched")
    (shard,) = engine.stats().shards
    assert shard.late_ms is not None
    assert 4_000 < shard.late_ms < 60_000


def test_pollers_and_members(running: Engine, engines: Engines, url: str, name: str) -> None:
    wait_until(lambda: {s.poller for s in running.stats().shards} == {"running"}, "all pollers run")
    wait_until(lambda: len(running.stats().dispatchers) == 1, "this process is the only one")
    other = engines.opened(url, name=name).stats()
    assert {shard.poller for shard in other.shards} == {"elsewhere"}
    assert other.dispatchers == ()
    running.stop()
    assert {shard.poller for shard in running.stats().shards} == {"elsewhere"}


def test_nodes_and_connections(running: Engine, url: str) -> None:
    addresses = set(url.partition("://")[2].split(","))
    stats = running.stats()
    nodes = {shard.node for shard in stats.shards}
    assert nodes <= addresses
    assert len(nodes) == (3 if "cluster" in url else 1)
    assert nodes <= set(stats.connections) <= addresses


def test_what_is_set_for_a_topic(running: Engine, engines: Engines, url: str) -> None:
    running.pause("mail")
    running.forward("letters", to="nowhere")
    running.limit("calls", rate=0.001, concurrency=1)
    running.push("x", topic="mail")
    wait_until(lambda: running.stats().ready == 1, "it waits in its ready list")
    for stats in (running.stats(), engines.opened(url, name=running.name).stats()):
        assert {topic: (each.paused, each.limit, each.route) for topic, each in stats.topics.items()} == {
            "calls": (False, Limit(rate=0.001, concurrency=1), None),
            "letters": (False, None, Route("nowhere")),
            "mail": (True, None, None),
        }
        assert {topic for topic, each in stats.topics.items() if each.keeps_back} == {"letters", "mail"}


def test_of_many_tasks_the_topics_are_estimated(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2)
    drawn = 2 * whole_of_a_shard(2)
    few = engine.push_many([Task(n, topic="rare" if n % 4 == 0 else "common", delay=FAR_S) for n in range(drawn // 2)])
    topics = engine.stats().topics
    assert not any(each.estimated for each in topics.values())
    assert (topics["rare"].scheduled, topics["common"].scheduled) == (len(few) // 4, len(few) * 3 // 4)
    engine.push_many([Task(n, topic="rare" if n % 4 == 0 else "common", delay=FAR_S) for n in range(drawn)])
    topics, count = engine.stats().topics, len(few) + drawn
    assert [list(each.estimated) for each in topics.values()] == [["scheduled"]] * 2
    # 3,200 drawn of which a quarter is expected: eight times the standard error
    error = topics["rare"].estimated["scheduled"]
    assert abs(topics["rare"].scheduled - count / 4) < 4 * error < 0.08 * count
    assert topics["rare"].scheduled + topics["common"].scheduled == count


def test_a_topic_with_one_task_is_always_listed(engines: Engines, url: str, name: str) -> None:
    """However its task was pushed, and wherever it was moved to; from the first look on, by any engine."""
    engine = engines.opened(url, name=name, shards=1)
    engine.push_many(Task(n, topic="common", delay=FAR_S) for n in range(9 * drawn_of_a_shard(1)))
    rare = {f"rare{n}" for n in range(200)}
    engine.push_many(Task(n, topic=topic, delay=FAR_S) for n, topic in enumerate(sorted(rare)))
    engine.push("x", topic="alone", delay=FAR_S)
    engine.push("x", topic="named", id="x", delay=FAR_S)
    engine.push("x", delay=FAR_S)
    topics = engines.opened(url, name=name).stats().topics
    assert set(topics) == {"", "alone", "named", "common", *rare}
    assert all(abs(topics[topic].scheduled - 1) <= 4 * topics[topic].estimated["scheduled"] for topic in rare)
    engine.purge("common")
    engine.start()
    engine.resize(2)
    wait_until(lambda: not engine.topology.priors, "all are where they belong", timeout=60)
    moved = {topic for topic in rare if engine.topology.shard_of(engine.tasks(topic=topic)[0].id)}
    assert moved
    driver = Driver(EngineAccess(engine).options.settings(url))
    driver.open()
    try:
        second = driver.call(observe.peek(shard_keys(name, 1), engine.topology.stamp, []))
    finally:
        driver.close()
    assert moved <= second.dispatched.keys()


def test_the_first_look_knows_the_age_of_the_oldest_ready_task(running: Engine) -> None:
    id = running.push("first", topic="mail")
    wait_until(lambda: state_of(running, id) == "ready", "it is ready")
    began = time.monotonic()
    wait_until(lambda: time.monotonic() - began > 0.5, "half a second is over")
    assert 0.5 <= (running.stats().topics["mail"].oldest_ready or 0) < 60


@pytest.mark.slow
def test_the_age_of_the_oldest_ready_task_is_known_by_the_looks_of_all(
    running: Engine, engines: Engines, url: str
) -> None:
    def age(engine: Engine) -> float:
        seen = engine.stats().topics["mail"].oldest_ready
        assert seen is not None
        return seen

    running.push("first", topic="mail")
    began = time.monotonic()
    wait_until(lambda: ready_of(running, "mail") == 1, "it is ready")
    wait_until(lambda: age(running) > 1.5, "it grows older with each look")
    running.push_many([Task(n, topic="mail") for n in range(20)])
    other = engines.opened(url, name=running.name)
    wait_until(lambda: ready_of(other, "mail") == 21, "there are more")
    assert 1.5 < age(other) < time.monotonic() - began + 1, "another process knows it at once, whatever came later"
    consumer = running.consumer("mail")
    consumer.ack(claim(consumer, 21))
    assert running.stats().topics["mail"].oldest_ready is None


def test_rates_are_told_from_the_second_look_on(running: Engine) -> None:
    first = running.stats()
    assert first.rates is None
    assert {shard.dispatched_per_s for shard in first.shards} == {None}
    running.push_many([Task(n, topic="mail") for n in range(25)])

    def seen() -> Stats | None:
        stats = running.stats()
        return stats if stats.rates is not None and stats.rates.dispatched > 0 else None

    stats = wait_until(seen, "what is dispatched between two looks makes a rate")
    assert stats is not None
    assert stats.rates is not None
    assert stats.topics["mail"].dispatched_per_s == stats.rates.dispatched
    assert stats.topics["mail"].taken_per_s == stats.rates.taken == 0
    assert sum(shard.dispatched_per_s or 0 for shard in stats.shards) == pytest.approx(stats.rates.dispatched, abs=0.1)
