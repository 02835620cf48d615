"""Jobs on the queues of Sidekiq. ``tests/brokers/test_sidekiq.py`` runs them in Sidekiq itself."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import redis

from cluster.server import Server
from shardq import Engine
from shardq.core.layout.topology import Route
from shardq.errors import InvalidUrl
from shardq.features.sinks.base import SENT, Message, Refused
from shardq.features.sinks.redis import SidekiqSink
from shardq.features.sinks.registry import check
from tests.sinks.seen import database_of
from tests.support.waiting import wait_until

DB = 10


@pytest.fixture
def to(single: Server) -> str:
    return f"sidekiq+{single.url}/{DB}#low"


@pytest.fixture
def client(single: Server) -> Iterator[redis.Redis]:
    yield from database_of(single, DB)


def jobs(client: redis.Redis) -> list[dict[str, Any]]:
    found: Any = client.lrange("queue:low", 0, -1)
    return [msgspec.json.decode(job) for job in found]


@pytest.mark.parametrize(("created_at", "unit"), [(1893456000.25, 1), (1893456000000, 1000)])
def test_a_job_goes_through_as_it_is(
    single: Server, name: str, client: redis.Redis, to: str, created_at: float, unit: int
) -> None:
    job = {"class": "HardJob", "args": [1, "é", {"a": [None, 1.5]}], "jid": "a1", "created_at": created_at, "retry": 3}
    with Engine(single.url, name=name, shards=4) as engine:
        engine.start()
        engine.forward("jobs", to=to)
        before = time.time()
        engine.push(job, topic="jobs", delay=0.1)
        wait_until(lambda: jobs(client), "it is on its queue")
    [stored] = jobs(client)
    at = stored.pop("enqueued_at")
    assert stored == job
    assert type(at) is type(created_at)
    assert before <= at / unit + 0.002
    assert client.smembers("queues") == {b"low"}


def message(jid: bytes, args: bytes = b"[]") -> Message:
    payload = b'{"jid":"%s","created_at":1,"args":%s}' % (jid, args)
    return Message(id="a", topic="jobs", payload=payload, codec="raw", headers={}, attempt=1)


def test_a_job_that_is_sent_twice_is_enqueued_once(client: redis.Redis, to: str) -> None:
    sink = SidekiqSink(to)
    sink.open()
    assert sink.send([message(b"a"), message(b"a")]) == [SENT, SENT]
    assert sink.send([message(b"a")]) == [SENT]
    sink.close()
    assert [job["jid"] for job in jobs(client)] == ["a"]


def test_what_is_no_job_is_refused_alone(to: str, client: redis.Redis) -> None:
    sink = SidekiqSink(to)
    sink.open()
    wrong = [message(b"a", b"[" * 100_000 + b"]" * 100_000), msgspec.structs.replace(message(b"a"), payload=b"[]")]
    assert [type(result) for result in sink.send([*wrong, message(b"b")])] == [Refused, Refused, type(SENT)]
    sink.close()
    assert [job["jid"] for job in jobs(client)] == ["b"]


def test_a_route_names_the_queue() -> None:
    with pytest.raises(InvalidUrl, match="ends with the queue"):
        check(Route("sidekiq+redis://127.0.0.1:1"))
