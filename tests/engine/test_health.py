"""health(): every reason is brought about on real servers and processes, and all that is well is well."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.calls import node_info
from shardq.core.dispatcher import poller
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.engine import servers as faults
from shardq.engine.health import MAX_LATE_S
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.findings import red
from tests.support.states import FAR_S, STATES, put, ready_of
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Worker


def reasons(engine: Engine, part: str) -> list[str]:
    return [reason for reason in engine.health().reasons if part in reason]


def test_all_is_well(running: Engine, engines: Engines, url: str) -> None:
    for state in STATES:
        put(running, state, topic=state)
    for engine in (running, engines.opened(url, name=running.name)):
        health = engine.health()
        assert (bool(health), health.ok, health.reasons) == (True, True, [])
        assert (health.stats.scheduled, health.stats.ready, health.stats.leased, health.stats.dead) == (1, 1, 1, 1)


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("bound", [0, -1, True, "5", float("nan"), float("inf")])
def test_bounds_that_are_none(engine: Engine, bound: float) -> None:
    for option in ("max_late", "max_ready_age"):
        with pytest.raises(InvalidOption, match=f"{option}=.*; give seconds, more than 0"):
            engine.health(**{option: bound})  # type: ignore[arg-type]


def test_nobody_serves_the_shards(engine: Engine) -> None:
    health = engine.health()
    assert (bool(health), health.reasons) == (False, [NO_DISPATCHER])
    engine.start()
    assert engine.health()
    engine.stop()
    wait_until(lambda: engine.health().reasons == [NO_DISPATCHER], "it is gone, or found to be")


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("count", [-1, True, 1.5, "5"])
def test_numbers_of_deaths_that_are_none(engine: Engine, count: int) -> None:
    with pytest.raises(InvalidOption, match=r"max_dead=.*; give an int from 0"):
        engine.health(max_dead=count)


def test_deaths_above_a_number(running: Engine) -> None:
    for topic in ("mail", "mail", "hooks"):
        put(running, "dead", topic=topic)
    assert running.health(), "three are few"
    assert running.health(max_dead=3)
    health = running.health(max_dead=2)
    assert red(health) == ["deaths"]
    assert health.reasons == [
        "3 tasks have died in the last 10 minutes; 2 of the last 3 of topic 'mail', by of no use: see `shardq list "
        "--state dead --newest`"
    ]
    assert health.stats.died_lately == 3
    running.requeue_all("mail")
    assert running.health(max_dead=2), "one is dead"


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("engines", ["sync"], indirect=True)  # the judgement is the same
def test_dead_tasks_that_are_removed_before_their_time_are_told(
    engines: Engines, url: str, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "TRIM_S", 0.1)
    engine = engines.opened(url, name=name, shards=2, dead_count=2)
    engine.start()
    for _ in range(10):
        put(engine, "dead")

    def few() -> bool:
        engine.push("x", topic="other")  # pollers that have nothing to do do not look either
        return engine.stats().dead <= 2

    wait_until(few, "most are removed")
    stats = engine.stats()
    assert stats.trimmed == 10 - stats.dead
    assert stats.trimmed_age is not None
    assert 0 <= stats.trimmed_age < 60
    assert red(engine.health()) == ["trimmed"]
    said = [record.getMessage() for record in caplog.records if "dead_count" in record.getMessage()]
    assert len(said) == 1, said


@pytest.mark.slow
def test_overdue_tasks(engine: Engine) -> None:
    engine.push("late", at=time.time() - 2 * MAX_LATE_S, id="a")
    engine.push("just due", at=time.time(), id="b")
    (late,) = reasons(engine, "overdue")
    assert late.startswith(f"shard {engine.topology.shard_of('a')}: tasks are overdue, by up to ")
    assert [each for each in engine.health(max_late=1e6).reasons if "overdue" in each] == []
    engine.start()
    wait_until(lambda: engine.health().ok, "they are dispatched")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("engines", ["sync"], indirect=True)  # the judgement is the same, and this one takes long
def test_a_dispatcher_that_was_stopped_by_a_signal(engine: Engine, url: str) -> None:
    name = engine.name
    with Worker("tests.support.dispatching", url, name, engine.topology.shards) as dispatcher:
        wait_until(lambda: engine.health().ok, "it serves all shards", timeout=SOON_S)
        os.kill(dispatcher.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: NO_DISPATCHER in engine.health().reasons, "it is missed", timeout=SOON_S)
            engine.push("x", at=time.time() - 2 * MAX_LATE_S)
            assert reasons(engine, "tasks are overdue")
        finally:
            os.kill(dispatcher.pid, signal.SIGCONT)
        wait_until(lambda: engine.health().ok, "it goes on", timeout=SOON_S)


def test_ready_tasks_that_nobody_takes(running: Engine) -> None:
    running.pause("paused")
    running.limit("limited", rate=0.001)
    for topic in ("paused", "limited", "mail"):
        running.push("x", topic=topic)
        wait_until(lambda: ready_of(running, topic) == 1, "it is ready")  # noqa: B023  called at once

    def old() -> list[str]:
        return [reason for reason in running.health(max_ready_age=0.5).reasons if "has waited" in reason]

    wait_until(lambda: len(old()) == 2, "two have waited, and the third is paused")
    limited, mail = sorted(old())
    assert limited.startswith("topic 'limited': the oldest of 1 ready task has waited for ")
    assert limited.endswith("; no worker that runs serves the topic; start one that has a handler or a task for it")
    assert mail.startswith("topic 'mail': the oldest of 1 ready task has waited for ")
    assert mail.endswith("; no worker that runs serves the topic; start one that has a handler or a task for it")
    assert running.health(), "not for a minute yet"
    consumer = running.consumer("mail")
    consumer.ack(consumer.claim(wait=SOON_S))
    running.pause("limited")
    assert old() == []


def test_what_is_forwarded_is_no_task_for_consumers(running: Engine) -> None:
    running.forward("letters", to="nowhere")
    running.pause("letters")
    running.push("x", topic="letters")
    wait_until(lambda: ready_of(running, "letters") == 1, "it is ready")
    wait_until(lambda: (running.stats().topics["letters"].oldest_ready or 0) > 0.2, "it waits")
    assert running.health(max_ready_age=0.1)


@pytest.mark.parametrize("policy", ["noeviction", "allkeys-lru"])
def test_a_server_that_is_nearly_full(engines: Engines, own_server: Server, name: str, policy: str) -> None:
    engine = engines.opened(own_server.url, name=name, shards=2)
    engine.start()
    own_server.ask("CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", "1gb")
    assert engine.health()
    used = int(own_server.ask("INFO", "memory")["used_memory"])
    own_server.ask("CONFIG", "SET", "maxmemory", str(used + used // 20))
    (full,) = reasons(engine, "of its maxmemory of")
    assert full.startswith(f"{own_server.address} uses more than 90% ")
    assert ("refuses pushes" in full, "evicts tasks" in full) == (policy == "noeviction", policy != "noeviction")
    own_server.ask("CONFIG", "SET", "maxmemory", "0")
    assert engine.health()


@pytest.mark.slow
@pytest.mark.parametrize("engines", ["sync"], indirect=True)  # the judgement is the same, and this one takes long
def test_a_node_that_was_killed(engines: Engines, server_binary: Path, name: str) -> None:
    options = {"cluster-require-full-coverage": "no"}
    with Cluster(server_binary, masters=3, replicas=0, options=options) as cluster:
        engine = engines.opened(cluster.url, name=name, shards=6, timeout=4.0)
        engine.start()
        wait_until(lambda: engine.health().ok, "all is well")
        lost = cluster.node_of_slot(next(
            keys.slot
            for keys in (shard_keys(name, shard) for shard in range(6))
            if cluster.node_of_slot(keys.slot) is not cluster.node_of_slot(control_keys(name).slot)
        ))  # fmt: skip
        lost.kill()
        declared = f"the cluster has declared the node {lost.address} (master) failed"
        wait_until(lambda: any(each.startswith(declared) for each in engine.health().reasons), "it is missed")
        health = engine.health()
        unseen = [shard.shard for shard in health.stats.shards if shard.error]
        assert 0 < len(unseen) < 6
        assert health.reasons[0].startswith(f"shard{'s' if len(unseen) > 1 else ''} {', '.join(map(str, unseen))} ")
        assert not any("no dispatcher" in each for each in health.reasons)
        engine.close()


@pytest.mark.parametrize("engines", ["sync"], indirect=True)  # the judgement is the same, and this one takes long
def test_a_replica_that_stands_still(
    engines: Engines, own_server: Server, replica: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_info, "SILENT_S", 4)
    engine = engines.opened(own_server.url, name=name, shards=2)
    engine.start()
    wait_until(lambda: engine.health().ok, "all is well")
    replica.pause()
    try:
        wait_until(lambda: reasons(engine, "has confirmed nothing for"), "it is missed", timeout=SOON_S)
        (silent,) = reasons(engine, "has confirmed nothing for")
        assert silent.startswith(f"the replica {replica.address} of {own_server.address} has confirmed nothing for ")
    finally:
        replica.resume()
    wait_until(lambda: engine.health().ok, "it goes on", timeout=SOON_S)


def test_a_clock_that_differs_from_the_servers(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    for ahead in (100.0, -100.0):
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda ahead=ahead, now=time.time: now() + ahead)
            found = reasons(running, "the clock of")
        assert len(found) == len({shard.node for shard in running.stats().shards})
        assert all(f"s {'behind' if ahead > 0 else 'ahead of'} that of this machine" in each for each in found)
    assert running.health()


def test_clocks_of_servers_that_differ() -> None:
    """Two servers of one machine have one clock: here it is said what two others would have answered."""
    found = [each.text for each in faults.skews({"a:1": 100.2, "b:1": 107.0, "c:1": 100.4}, 100.0, 100.5)]
    assert [each.partition(":1 ")[0] for each in found] == ["the clock of b", "the clock of b"]
    assert "is 6.5 s ahead of that of this machine" in found[0]
    assert "is 6.3 s ahead of that of a:1" in found[1]
    assert list(faults.skews({"a:1": 100.2, "b:1": 107.0}, 100.0, 108.0)) == [], "the asking took eight seconds"
    assert list(faults.skews({}, 100.0, 100.0)) == []


def test_a_shard_that_can_not_be_dispatched_by_this_process(running: Engine, engines: Engines, url: str) -> None:
    assert engines.opened(url, name=running.name).health(), "what this process can't know it does not say"
    running.push_many([Task(n, delay=FAR_S) for n in range(10)])
    assert {shard.poller_idle is not None for shard in running.health().stats.shards} == {True}


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_dead_route_among_many_is_a_warning(running: Engine) -> None:
    """And many of them are one reason with some examples, which does not call the engine ill."""
    for number in range(20):
        running.forward(f"customer{number}", to=f"list{number}")

    def dead(*numbers: int) -> None:
        for number in numbers:
            running.forward(f"customer{number}", to="redis://127.0.0.1:1/0?timeout=0.3#list")
            running.push(number, topic=f"customer{number}")
        wait_until(lambda: len(running.stats().failing_routes) == numbers[-1] + 1, "they fail", timeout=SOON_S)

    dead(0)
    health = running.health()
    assert (health.ok, health.severity, health.reasons) == (True, "ok", [])
    assert "topic 'customer0' can't be forwarded to redis://127.0.0.1:1/0?***#list" in " ".join(health.warnings)
    dead(1, 2, 3, 4)
    health = running.health()
    assert (health.ok, health.severity, red(health)) == (False, "route", ["route"] * 4)
    assert health.reasons[3] == "2 more of this kind (route), 5 in all"
    own = [each for each in health.warnings if "forwarded" in each]
    assert own == []
