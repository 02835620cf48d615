"""Dead tasks are listed with their reasons page by page, requeued, and trimmed in time; purge removes tasks in bulk."""

from __future__ import annotations

import datetime as dt
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardq import Consumer, Engine, Task
from shardq.errors import InvalidTopic
from shardq.features.listing import bulk
from tests.support.engines import Engines
from tests.support.listed import listed
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, claim, counted, put, state_of
from tests.support.waiting import wait_until


def bury(engine: Engine, count: int, topic: str = "", reason: str = "of no use") -> list[str]:
    """So many dead tasks."""
    ids: list[str] = [*engine.push_many([Task(n, topic=topic, headers={"n": f"{n}"}) for n in range(count)])]
    consumer = engine.consumer(topic)
    consumer.bury(claim(consumer, count), reason)
    return ids


def test_what_is_known_of_a_dead_task(running: Engine, consumer: Consumer) -> None:
    id = running.push({"n": 1}, topic="mail", headers={"k": "v"}, max_attempts=3)
    mail = running.consumer("mail", lease=0.1)
    claim(mail, 1)
    consumer = running.consumer("mail")
    again = claim(consumer, 1)
    consumer.retry(again)
    consumer.bury(claim(consumer, 1), "the last straw")
    (task,) = listed(running, state="dead")
    assert (task.id, task.topic, task.reason, task.payload) == (id, "mail", "the last straw", {"n": 1})
    assert (task.failures, task.lapses, task.headers) == (2, 1, {"k": "v"})
    assert task.died is not None
    assert abs(dt.datetime.now(dt.UTC) - task.died) < dt.timedelta(seconds=30)


def test_by_topic_with_their_reasons(running: Engine) -> None:
    mail, sms = bury(running, 5, "mail", "no such address"), bury(running, 3, "sms", "no such number")
    for topic, reasons in (
        ("mail", dict.fromkeys(mail, "no such address")),
        ("sms", dict.fromkeys(sms, "no such number")),
    ):
        assert {task.id: task.reason for task in listed(running, topic=topic, state="dead")} == reasons
    assert listed(running, topic="", state="dead") == []
    assert len(listed(running, state="dead")) == 8
    with pytest.raises(InvalidTopic):
        listed(running, topic="a b", state="dead")


def test_bringing_all_of_a_topic_back(running: Engine) -> None:
    mail, sms = bury(running, 250, "mail"), bury(running, 3, "sms")
    assert running.requeue_all("mail").done == 250
    deliveries = claim(running.consumer("mail"), 250)
    assert sorted(d.id for d in deliveries) == sorted(mail)
    assert {(d.attempt, d.failures) for d in deliveries} == {(1, 0)}
    assert sorted(task.id for task in listed(running, state="dead")) == sorted(sms)
    assert running.requeue_all(everything=True).done == 3
    assert counted(running).dead == 0


def test_bringing_all_back_ends_although_they_die_again(running: Engine) -> None:
    count = 3 * bulk.PAGE
    bury(running, count)
    consumer = running.consumer()
    ending = threading.Event()

    def failing() -> None:
        while not ending.is_set():
            consumer.bury(consumer.claim(100, wait=0.05), "still of no use")

    with ThreadPoolExecutor(1) as threads:
        worker = threads.submit(failing)
        try:
            assert running.requeue_all(everything=True).done == count
        finally:
            ending.set()
        worker.result()


def test_a_payload_that_can_not_be_decoded_is_listed(engines: Engines, url: str, name: str) -> None:
    class Secret:
        name = "secret"

        def encode(self, payload: object) -> bytes:
            return b"?"

        def decode(self, data: bytes) -> object:
            return "decoded"

    with engines.make(url, name=name, shards=1, codec=Secret()) as writer:
        id = writer.push("x", headers={"k": "v"}, max_attempts=1)
    engine = engines.opened(url, name=name, shards=1)
    engine.start()
    consumer, given = engine.consumer(), list[object]()

    def buried() -> bool:
        given.extend(consumer.claim(1, wait=0.1))
        return engine.stats().dead == 1

    wait_until(buried, "it is buried")
    assert given == []
    (task,) = listed(engine, state="dead")
    assert (task.id, task.payload) == (id, None)
    assert "can't be decoded" in str(task.reason)


def test_how_many_are_kept_in_a_shard_follows_the_number_of_shards(
    engines: Engines, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.core.dispatcher.poller.TRIM_S", 0.05)
    engine = engines.opened(url, name=name, shards=4, dead_count=200)
    engine.start()
    bury(engine, 100)  # of 50 that each shard keeps
    kept = counted(engine).dead
    assert kept > 50
    assert engines.done(engine.resize(1).wait(30))
    for _ in range(5):
        bury(engine, 1)  # something was due: the poller stepped
    assert counted(engine).dead == kept + 5
    bury(engine, 300)

    def trimmed() -> bool:
        engine.push("x")
        return counted(engine).dead == 200

    wait_until(trimmed, "as many are left as may be in all shards")


def test_dead_tasks_are_trimmed_to_the_end(
    engines: Engines, url: str, name: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing falls due: 500 a step, and a poller with nothing to do steps every 20 s."""
    monkeypatch.setattr("shardq.core.dispatcher.poller.TRIM_S", 0.0)
    engine = engines.opened(url, name=name, shards=1, dead_count=10)
    (keys,) = keys_of(name, 1)
    now = servers.now_ms(keys.slot)
    servers.ask(keys.slot, "ZADD", keys.dead, *(word for n in range(20_000) for word in (now, f"d{n}")))
    engine.start()
    wait_until(lambda: servers.ask(keys.slot, "ZCARD", keys.dead) == 10, "ten are left")


def test_purging_a_topic(running: Engine) -> None:
    mail = {state: put(running, state, topic="mail") for state in ("scheduled", "leased", "dead", "ready")}
    sms = {state: put(running, state, topic="sms") for state in ("scheduled", "leased", "dead", "ready")}
    assert running.purge("mail") == 3
    assert {state: state_of(running, id) for state, id in mail.items()} == {
        "scheduled": "gone",
        "leased": "leased",
        "dead": "gone",
        "ready": "gone",
    }
    assert all(state_of(running, id) == state for state, id in sms.items())
    assert running.consumer("mail").claim(10) == []


def test_purging_the_default_topic_leaves_the_others(running: Engine) -> None:
    for topic in ("", "mail"):
        put(running, "scheduled", topic=topic)
        put(running, "ready", topic=topic)
    assert running.purge("") == 2
    stats = counted(running)
    assert (stats.scheduled, stats.ready) == (1, 1)


def test_purging_everything(running: Engine, servers: Servers, name: str) -> None:
    for topic in ("", "mail", "sms"):
        for state in ("scheduled", "dead", "ready"):
            put(running, state, topic=topic)
    running.push_many([Task(n, delay=FAR_S) for n in range(3000)])
    assert running.purge(everything=True) == 3009
    stats = counted(running)
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)
    running.stop()
    kinds = {key.decode().rpartition("}:")[2] for key in servers.held(name)}
    assert kinds <= {"meta", "topics", "topology", "members", "changes", "edits", "history"}


def test_what_is_held_while_all_is_purged_finishes(running: Engine) -> None:
    id = running.push("x")
    consumer = running.consumer()
    (delivery,) = claim(consumer, 1)
    assert running.purge(everything=True) == 0
    consumer.ack(delivery)
    assert state_of(running, id) == "gone"
