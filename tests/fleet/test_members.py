"""engine.fleet(): the processes of an engine, and what each says of itself."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import shardq
from shardq import Batch, Delivery, Engine, Member, Task
from shardq.core.dispatcher import membership
from shardq.core.fleet import report
from shardq.core.layout.keys import control_keys
from shardq.worker import report as reporter
from shardq.worker import report as tally
from shardq.worker.report import ALIVE_S
from tests.support.engines import SHARDS, Engines
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.support.working import Options


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members in this process report at once; those in other processes keep the real intervals."""
    monkeypatch.setattr(membership, "ALONE_BEAT_S", 0.2)
    monkeypatch.setattr(reporter, "BEAT_S", 0.2)
    monkeypatch.setattr(report, "LEAST_GAP_S", 0.1)


def of(engine: Engine, kind: str) -> list[Member]:
    return [member for member in engine.fleet() if member.kind == kind]


def awaited(engine: Engine, sentence: str, test: Callable[[Member], object]) -> Member:
    """Waits for a member that the test is true of."""
    return wait_until(lambda: [member for member in engine.fleet() if test(member)], sentence)[0]


def test_nobody(engine: Engine) -> None:
    assert engine.fleet() == []


def test_a_dispatcher_says_what_it_serves(running: Engine) -> None:
    before = time.time()
    member = awaited(running, "it is listed with its shards", lambda member: member.shards)
    assert (member.kind, member.host, member.pid) == ("dispatcher", socket.gethostname(), os.getpid())
    assert (member.version, member.shards) == (shardq.__version__, tuple(range(SHARDS)))
    assert member.name in running.stats().dispatchers
    assert before - 60 < member.since < time.time()
    assert member.seen_s < 8
    assert (member.topics, member.concurrency, member.handled, member.last_error) == ((), 0, 0, "")
    running.stop()
    wait_until(lambda: running.fleet() == [], "it signed off")


def test_dispatch_lateness_is_told_by_topic(running: Engine) -> None:
    running.push_many([*(Task(n) for n in range(7)), *(Task(n, topic="mail") for n in range(5))])

    def counted() -> dict[str, int]:
        return {topic: late.count for m in running.fleet() for topic, late in m.dispatch_lateness.items()}

    wait_until(lambda: counted() == {"": 7, "mail": 5}, "all are counted, by topic")
    (member,) = running.fleet()
    assert member.dispatched == 12
    assert all(late.p99_ms is not None and late.early == 0 for late in member.dispatch_lateness.values())


def test_a_worker_says_what_it_has_done(engines: Engines, running: Engine) -> None:
    worker = running.worker(concurrency=3, max_attempts=1)

    def handle(delivery: Delivery) -> None:
        if delivery.payload == "bad":
            raise ValueError("no such order")
        if delivery.payload == "buried":
            raise shardq.Bury("nobody wants it")
        if delivery.payload == "snoozed":
            raise shardq.Snooze(3600)

    worker.on("mail")(handle)
    worker.on("")(handle)
    running.push_many([Task("good"), Task("good", topic="mail"), Task("good", topic="mail")])
    running.push("bad", topic="mail")
    running.push_many([Task("buried"), Task("snoozed", topic="mail")])
    with engines.working(worker):
        member = awaited(
            running, "all is reported", lambda member: member.handled + member.failed + member.snoozed == 6
        )
        assert (member.host, member.pid, member.version) == (socket.gethostname(), os.getpid(), shardq.__version__)
        assert (member.topics, member.concurrency, member.shards) == (("mail", ""), 3, ())
        assert (member.handled, member.failed, member.retried, member.running) == (3, 2, 1, 0)
        assert member.snoozed == 1
        assert member.last_error in ("ValueError: no such order", "nobody wants it")
        assert {topic: late.count for topic, late in member.pickup_lateness.items()} == {"mail": 4, "": 2}
        assert member.seen_s <= 30
    # at once, but for a server that stood still then
    wait_until(lambda: of(running, "worker") == [], "it signed off", timeout=2 * ALIVE_S)


def test_a_worker_says_how_large_its_batches_were(engines: Engines, running: Engine) -> None:
    worker = running.worker(max_attempts=1)

    @worker.on("events", batch=10)
    def store(batch: Batch[object]) -> list[Exception | None]:
        return [ValueError("no such order") if payload == "bad" else None for payload in batch.payloads]

    running.push_many([Task("good", topic="events")] * 4 + [Task("bad", topic="events")])
    wait_until(lambda: running.stats().ready == 5, "one claim gets all")
    with engines.working(worker):
        member = awaited(running, "all is reported", lambda member: member.handled + member.failed == 5)
        assert (member.batches, member.batched, member.failed) == (1, 5, 1)
        running.push("good", topic="events")
        member = awaited(running, "the second is reported", lambda member: member.handled == 5)
        assert (member.batches, member.batched) == (2, 6)


def test_a_worker_says_what_runs_longest(engines: Engines, running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "LONG_S", 0.3)
    monkeypatch.setattr(tally, "STUCK_S", 0.3)
    worker, over = running.worker(concurrency=2), threading.Event()

    @worker.on("mail")
    def handle(delivery: Delivery) -> None:
        over.wait(60)

    ids = [running.push("x", topic="mail"), running.push("y", topic="mail")]
    with engines.working(worker):
        member = awaited(running, "both are reported", lambda member: member.stuck == 2)
        assert {(task.id, task.topic) for task in member.longest} == {(id, "mail") for id in ids}
        assert all(task.seconds >= 0.3 for task in member.longest)
        assert member.running == 2
        over.set()
        awaited(running, "they are over", lambda member: member.handled == 2 and not (member.longest or member.stuck))


def test_engines_do_not_mix(engines: Engines, running: Engine, url: str, name: str) -> None:
    other = engines.opened(url, name=f"{name}-other", shards=1)
    wait_until(lambda: len(running.fleet()) == 1, "one is there")
    assert other.fleet() == []


def test_what_has_another_form_is_listed_without_its_report(engine: Engine, servers: Servers, name: str) -> None:
    keys = control_keys(name)
    until_ms = int(servers.now_ms(keys.slot)) + 60_000
    servers.ask(keys.slot, "ZADD", keys.workers, until_ms, "new", until_ms, "none")
    servers.ask(keys.slot, "HSET", keys.reports, "new", b"\x93abc", "nobody", msgspec.msgpack.encode({}))
    assert engine.fleet() == [Member(kind="worker", name="new"), Member(kind="worker", name="none")]


def test_a_report_that_was_lost_comes_again(running: Engine, servers: Servers, name: str) -> None:
    keys = control_keys(name)
    wait_until(lambda: any(member.shards for member in running.fleet()), "it is listed")
    servers.ask(keys.slot, "DEL", keys.members, keys.reports)
    wait_until(lambda: any(member.shards for member in running.fleet()), "it is listed again")


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_killed_and_frozen_processes_go_and_those_that_go_on_come_back(
    url: str, name: str, tmp_path: Path, servers: Servers
) -> None:
    def pids(engine: Engine) -> set[int]:
        return {member.pid for member in engine.fleet()}

    options = msgspec.json.encode(Options(folder=str(tmp_path))).decode()
    with (
        Engine(url, name=name, shards=SHARDS) as engine,
        Worker("tests.support.dispatching", url, name, SHARDS) as killed,
        Worker("tests.support.dispatching", url, name, SHARDS) as frozen,
        Worker("tests.support.working", url, name, options) as killed_worker,
        Worker("tests.support.working", url, name, options) as frozen_worker,
    ):
        everybody = {killed.pid, frozen.pid, killed_worker.pid, frozen_worker.pid}
        wait_until(lambda: pids(engine) == everybody, "all four are listed")
        for each in (frozen, frozen_worker):
            os.kill(each.pid, signal.SIGSTOP)
        try:
            for each in (killed, killed_worker):
                each.kill()
            wait_until(lambda: not of(engine, "dispatcher"), "no dispatcher is listed", timeout=60)
            # half a minute of silence, which would be the most of this test: their time is set to be over
            keys = control_keys(name)
            for worker, until_ms in servers.ask(keys.slot, "ZRANGE", keys.workers, 0, -1, "WITHSCORES"):
                assert until_ms <= servers.now_ms(keys.slot) + reporter.ALIVE_S * 1000
                servers.ask(keys.slot, "ZADD", keys.workers, 1, worker)
            wait_until(lambda: not engine.fleet(), "no worker is listed", timeout=120)
        finally:
            for each in (frozen, frozen_worker):
                os.kill(each.pid, signal.SIGCONT)
        wait_until(lambda: pids(engine) == {frozen.pid, frozen_worker.pid}, "the frozen ones are back", timeout=60)
        wait_until(
            lambda: [m.shards for m in of(engine, "dispatcher")] == [tuple(range(SHARDS))], "it serves all", timeout=60
        )
