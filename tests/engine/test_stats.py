"""The fields of stats(), and its totals, which are the sums over the shards."""

from __future__ import annotations

import time

import pytest

from shardq import Engine, Task
from shardq.engine.stats import OVERDUE_S
from shardq.layout.topology import Limit, Route
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S, STATES, claim, put
from tests.support.waiting import wait_until


def test_an_engine_that_was_never_used(engine: Engine, name: str) -> None:
    stats = engine.stats()
    assert (stats.name, stats.epoch, len(stats.shards)) == (name, 1, SHARDS)
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
    assert (stats.dispatched, stats.forwarded, stats.ready_by_topic, stats.dispatched_by_topic) == (0, 0, {}, {})
    assert stats.server.startswith(("valkey ", "redis "))
    assert (stats.dispatchers, stats.healthy, stats.problems) == ((), True, ())
    assert (stats.paused, stats.limits, stats.routes) == ((), {}, {})
    for number, shard in enumerate(stats.shards):
        assert (shard.shard, shard.poller, shard.poller_error) == (number, "elsewhere", None)
        assert (shard.head_age, shard.late_ms) == (None, None)


def test_every_state_is_counted(running: Engine) -> None:
    for state in STATES:
        put(running, state, topic=state)
    stats = running.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (1, 1, 1, 1)
    assert stats.dispatched == 3
    assert stats.ready_by_topic == {"ready": 1, "leased": 0, "dead": 0}
    assert stats.dispatched_by_topic == {"ready": 1, "leased": 1, "dead": 1}


def test_totals_are_the_sum_of_the_shards(running: Engine) -> None:
    running.push_many([Task(n, topic=f"t{n % 3}") for n in range(60)])
    running.push_many([Task(n, delay=FAR_S) for n in range(200)])  # some in every shard, as good as certainly
    wait_until(lambda: running.stats().ready == 60, "all due tasks are ready")
    claim(running.consumer("t0"), 20)
    stats = running.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dispatched) == (200, 40, 20, 60)
    assert stats.ready_by_topic == {"t0": 0, "t1": 20, "t2": 20}
    assert stats.dispatched_by_topic == {"t0": 20, "t1": 20, "t2": 20}
    for field in ("scheduled", "ready", "leased", "dead", "dispatched", "forwarded"):
        assert getattr(stats, field) == sum(getattr(shard, field) for shard in stats.shards)
    for topic in stats.ready_by_topic:
        assert stats.ready_by_topic[topic] == sum(shard.ready_by_topic.get(topic, 0) for shard in stats.shards)
    assert all(shard.scheduled for shard in stats.shards)


def test_the_head_of_a_shard(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=1)
    engine.push_many([Task("x", delay=100), Task("y", delay=200)])
    (shard,) = engine.stats().shards
    assert shard.head_age is not None
    assert -100.002 < shard.head_age < -50  # a due time is rounded up to the ms
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
    wait_until(lambda: running.stats().healthy, "all are well")
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


def test_topics_of_a_shard_are_found_one_look_later(engine: Engine, engines: Engines, url: str) -> None:
    engine.start()
    engine.push_many([Task(n, topic=f"t{n}") for n in range(30)])
    other = engines.opened(url, name=engine.name)
    wait_until(lambda: other.stats().ready == 30, "another engine sees all topics")
    assert set(other.stats().ready_by_topic) == {f"t{n}" for n in range(30)}


def test_overdue_tasks_that_nobody_dispatches(engine: Engine) -> None:
    engine.push("late", at=time.time() - 2 * OVERDUE_S, id="a")
    engine.push("just due", at=time.time(), id="b")
    stats = engine.stats()
    (problem,) = stats.problems
    assert not stats.healthy
    assert problem.startswith(f"shard {engine.topology.shard_of('a')}: tasks are overdue, by up to ")
    engine.start()
    wait_until(lambda: engine.stats().healthy, "they are dispatched")


def test_what_is_held_on_purpose_is_not_overdue(running: Engine, engines: Engines, url: str) -> None:
    running.pause("mail")
    running.forward("letters", to="nowhere")
    running.pause("letters")
    running.limit("calls", rate=0.001, concurrency=1)
    for topic in ("mail", "letters", "calls"):
        running.push("x", topic=topic, at=time.time() - 2 * OVERDUE_S)
    wait_until(lambda: running.stats().ready == 3, "they wait in their ready lists")
    for stats in (running.stats(), engines.opened(url, name=running.name).stats()):
        assert stats.scheduled == 0
        assert (stats.healthy, stats.problems) == (True, ())
        assert stats.paused == ("letters", "mail")
        assert stats.limits == {"calls": Limit(rate=0.001, concurrency=1)}
        assert stats.routes == {"letters": Route("nowhere")}


@pytest.mark.parametrize("protocol", [2, 3])
def test_both_protocols(engines: Engines, url: str, name: str, protocol: int) -> None:
    engine = engines.opened(url, name=name, shards=2, protocol=protocol)
    engine.start()
    engine.forward("email", to=f"mine:{name}")
    id = engine.push("x", headers={"a": "b"})
    consumer = engine.consumer()
    (delivery,) = claim(consumer, 1)
    consumer.bury(delivery, "no")
    task = engine.get(id)
    assert task is not None
    assert (task.state, task.reason) == ("dead", "no")
    assert engine.requeue(id)
    assert engine.stats().dead == 0
