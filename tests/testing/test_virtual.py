"""Virtual time in calls: every script that takes its now is given it, on every way that calls are sent."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

import shardq
from cluster.server import Server
from shardq.core.scripts import script
from shardq.testing import Clock

SCRIPTS = sorted(path.stem for path in (Path(shardq.__file__).parent / "lua").glob("*.lua"))

FAR = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)


def test_the_place_of_now_is_known_for_all_scripts_that_take_it() -> None:
    places = {name: script(name).place_of_now for name in SCRIPTS}
    assert {name for name, place in places.items() if place is None} == {
        "open",
        "declare",
        "history",
        "learn",
        "release",
        "set_schedule",
    }
    assert {name: place for name, place in places.items() if place not in (None, 1)} == {"fleet": 0, "report": 2}


@pytest.fixture
def clock(own_server: Server) -> Iterator[Clock]:
    with Clock(own_server.url, start=FAR) as clock:
        yield clock


def test_no_call_goes_by_the_clock_of_the_server(clock: Clock, own_server: Server) -> None:
    """Everything stored, whatever stored it, is of the year 2040."""
    engine = clock.adopt(shardq.Engine(shards=2, dead_age=1e6))
    engine.limit("limited", rate=5, concurrency=5)
    engine.push("one", delay=1)
    engine.push("own", id="own", dedup=60, delay=1)
    engine.push_many([shardq.Task(n, delay=n) for n in range(10)])
    for _ in engine.push_iter(shardq.Task(n, delay=n) for n in range(10)):
        pass
    with engine.buffered() as buffer:
        buffer.push("buffered", delay=60)
    own_server.ask("CONFIG", "SET", "appendfsync", "always")
    engine.push("synced", durability="fsynced")
    engine.reschedule(engine.push("moved", delay=5), delay=10)
    engine.push_many([shardq.Task(n, topic="limited") for n in range(10)])
    clock.advance(seconds=2)
    consumer = engine.consumer(["limited", ""])
    a, b, c, *_ = consumer.claim(30)
    consumer.retry(a, delay=30)
    consumer.bury(b, "no such address")
    consumer.extend(c, 600)
    with redis.Redis.from_url(own_server.url) as client:
        scores: dict[tuple[bytes, bytes], float] = {}
        for key in client.scan_iter("*"):
            if client.type(key) == b"zset" and not key.endswith(b":edits"):  # its scores are epochs
                scores |= {(key, member): score for member, score in client.zrange(key, 0, -1, withscores=True)}
        assert len(scores) > 25
        early = {each: score for each, score in scores.items() if score < FAR.timestamp() * 1000}
        assert early == {}
        [at_us] = [
            int(at) for key in client.scan_iter("*limits/rate*") if (at := client.hget(key, "at_us")) is not None
        ]
        assert at_us >= FAR.timestamp() * 1e6


def test_a_forwarded_topic_is_on_its_list_at_its_time(clock: Clock, own_server: Server) -> None:
    engine = clock.adopt(shardq.Engine(shards=2, codec="raw"))
    engine.forward("mail", to="mail-queue")
    worker, lengths = engine.worker(), list[int]()
    with redis.Redis.from_url(own_server.url) as client:

        @worker.on("")
        def look(_: shardq.Delivery) -> None:
            lengths.append(client.llen("mail-queue"))

        clock.bind(worker)
        engine.push_many([shardq.Task(b"%d" % n, delay=n * 10, topic="mail", expires=n * 10 + 5) for n in range(10)])
        engine.push_many([shardq.Task(b"look", delay=n * 10 + 1) for n in range(10)])
        clock.advance(hours=1)
        assert lengths == list(range(1, 11))
        assert client.lrange("mail-queue", 0, -1) == [b"%d" % n for n in range(10)]
        client.delete("mail-queue")


def test_a_list_in_another_slot_is_refused_in_words(cluster: object) -> None:
    with Clock(str(cluster.url)) as clock:  # type: ignore[attr-defined]
        engine = clock.adopt(shardq.Engine(shards=2))
        engine.forward("mail", to="mail-queue")
        engine.push("hi", topic="mail", delay=5)
        with pytest.raises(shardq.errors.InvalidOption, match=re.escape("test it in real time (--shardq-real-time)")):
            clock.advance(minutes=1)


def test_lost_answers_are_resent_with_the_time_of_the_clock(clock: Clock, own_server: Server) -> None:
    """The server ends all connections in the middle of the pushes of one virtual instant."""
    engine = clock.adopt(shardq.Engine(shards=1, timeout=20))
    engine.push("first")
    with redis.Redis.from_url(own_server.url) as client:
        for n in range(20):
            client.execute_command("CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal")
            engine.push(n, delay=60)
            engine.push(n, delay=60, id=f"own-{n}")
    dues = {task.due for task in shardq.testing.tasks(engine) if task.state == "scheduled"}
    assert dues == {FAR + dt.timedelta(seconds=60)}
    clock.advance(minutes=1)
    assert len(shardq.testing.drain(engine)) == 41
