"""Jobs in the format of Sidekiq. ``tests/brokers/test_sidekiq.py`` runs them in Sidekiq itself."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from cluster.server import Server
from shardq import AsyncEngine, Engine
from shardq.core.layout.topology import Route
from shardq.errors import InvalidOption, InvalidTopic, InvalidUrl
from shardq.features.sinks.base import SENT, Message, Refused
from shardq.features.sinks.redis import SidekiqSink
from shardq.features.sinks.registry import check
from shardq.integrations.sidekiq import AsyncSidekiq, Sidekiq
from tests.integrations.examples import run_examples
from tests.support.pages import run_program
from tests.support.waiting import wait_until

DB = 10


@pytest.fixture
def to(single: Server) -> str:
    return f"sidekiq+{single.url}/{DB}"


@pytest.fixture
def client(single: Server) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(f"{single.url}/{DB}") as client:
        client.flushdb()
        yield client
        client.flushdb()


@pytest.fixture
def engine(single: Server, name: str) -> Iterator[Engine]:
    with Engine(single.url, name=name, shards=4, timeout=10.0) as engine:
        yield engine


def jobs(client: redis.Redis, queue: str = "default") -> list[dict[str, Any]]:
    """The jobs in the order in which Sidekiq takes them: from the right."""
    found: Any = client.lrange(f"queue:{queue}", 0, -1)
    return [msgspec.json.decode(job) for job in reversed(found)]


@pytest.mark.parametrize("codec", ["json", "raw"])
@pytest.mark.parametrize(("major", "kind", "unit"), [(7, float, 1), (8, int, 1000)])
def test_a_job_is_as_sidekiq_makes_it(
    single: Server, name: str, client: redis.Redis, to: str, codec: str, major: int, kind: type, unit: int
) -> None:
    with Engine(single.url, name=name, codec=codec) as engine:
        engine.start()
        sidekiq = Sidekiq(engine, major=major, to=to)
        before = time.time()
        jid = sidekiq.push("HardJob", [1, "é", {"a": [None, 1.5]}], delay=0.2, retry=3, options={"tags": ["mail"]})
        wait_until(lambda: jobs(client), "it is on its queue")
        [job] = jobs(client)
        times = job.pop("created_at"), job.pop("enqueued_at")
        assert job == {
            "class": "HardJob",
            "args": [1, "é", {"a": [None, 1.5]}],
            "queue": "default",
            "jid": jid,
            "retry": 3,
            "tags": ["mail"],
        }
        assert [type(each) for each in times] == [kind, kind]
        assert before <= times[0] / unit + 0.002
        assert times[0] <= times[1]
        assert len(jid) == 24
        assert int(jid, 16) >= 0
        assert client.smembers("queues") == {b"default"}


def test_queues_cancels_and_jids(engine: Engine, client: redis.Redis, to: str) -> None:
    sidekiq = Sidekiq(engine, to=to)
    gone, kept = sidekiq.push_many("HardJob", [[1], [2]], queue="low", delay=3600)
    assert sidekiq.cancel(gone, queue="low")
    assert not sidekiq.cancel(gone, queue="low")
    for _ in range(2):
        assert sidekiq.push("HardJob", jid="mine", at=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)) == "mine"
    assert engine.stats().scheduled == 2
    engine.start()
    assert engine.reschedule(f"sidekiq.low/{kept}", delay=0)
    wait_until(lambda: jobs(client, "low"), "it is on its queue")
    assert [(job["jid"], job["args"]) for job in jobs(client, "low")] == [(kept, [2])]
    assert jobs(client) == []


def test_on_asyncio_it_is_the_same(single: Server, name: str, to: str) -> None:
    async def main() -> None:
        async with AsyncEngine(single.url, name=name, shards=4) as engine:
            sidekiq = AsyncSidekiq(engine, to=to)
            jid = await sidekiq.push("HardJob", [1], delay=3600)
            jids = await sidekiq.push_many("HardJob", [[2], [3]], delay=3600)
            assert {task.payload["jid"] for task in await engine.tasks(topic="sidekiq.default")} == {jid, *jids}
            assert await sidekiq.cancel(jid)
            with pytest.raises(InvalidOption, match="takes a shardq"):
                Sidekiq(engine)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_job_that_is_sent_twice_is_enqueued_once(engine: Engine, client: redis.Redis, to: str) -> None:
    jid = Sidekiq(engine, to=to).push("HardJob", delay=3600)
    info = engine.get(f"sidekiq.default/{jid}", decode=False)
    assert info is not None
    message = Message(id=info.id, topic=info.topic, payload=info.payload, codec="json", headers={}, attempt=1)
    sink = SidekiqSink(f"{to}#default")
    sink.open()
    assert sink.send([message, message]) == [SENT, SENT]
    assert sink.send([message]) == [SENT]
    assert sink.send([msgspec.structs.replace(message, payload=b"[]")]) != [SENT]
    sink.close()
    assert [job["jid"] for job in jobs(client)] == [jid]


def test_what_is_nested_too_deeply_is_refused_alone(to: str, client: redis.Redis) -> None:
    payload = b'{"jid":"%s","created_at":1,"args":%s}'
    messages = [
        Message(id="a", topic="jobs", payload=payload % (jid, args), codec="raw", headers={}, attempt=1)
        for jid, args in ((b"a", b"[" * 100_000 + b"]" * 100_000), (b"b", b"[]"))
    ]
    sink = SidekiqSink(f"{to}#default")
    sink.open()
    assert [type(result) for result in sink.send(messages)] == [Refused, type(SENT)]
    sink.close()
    assert [job["jid"] for job in jobs(client)] == ["b"]


def test_what_is_wrong_is_said(engine: Engine, to: str, single: Server, name: str) -> None:
    sidekiq = Sidekiq(engine, to=to)
    for args in ([dt.date.today()], [(1, 2)], [{1: 2}], [float("nan")], [object()]):
        with pytest.raises(InvalidOption, match="does not come back from JSON"):
            sidekiq.push("HardJob", args)
    with pytest.raises(InvalidOption, match="give a list"):
        sidekiq.push("HardJob", "ann")
    with pytest.raises(InvalidOption, match="its name in Ruby"):
        sidekiq.push("")
    with pytest.raises(InvalidOption, match="jid: that is what push makes"):
        sidekiq.push("HardJob", options={"jid": "x"})
    wrong: Any
    for wrong in ("", 5):
        with pytest.raises(InvalidOption, match=f"jid={wrong!r} is not possible; give text, or None"):
            sidekiq.push("HardJob", jid=wrong)
    for wrong in ("yes", None, -1, 2.5):
        with pytest.raises(InvalidOption, match=f"retry={wrong!r} is not possible; give True, False, or the number"):
            sidekiq.push("HardJob", retry=wrong)
        with pytest.raises(InvalidOption, match=f"retry={wrong!r} is not possible"):
            sidekiq.push_many("HardJob", [[1]], options={"retry": wrong})
    with pytest.raises(InvalidTopic):
        sidekiq.push("HardJob", queue="a queue")
    with pytest.raises(InvalidOption, match="no version"):
        Sidekiq(engine, major=0)
    with pytest.raises(InvalidOption, match="cluster or embedded"):
        Sidekiq(Engine("redis+cluster://127.0.0.1:1"))
    with pytest.raises(InvalidOption, match="codec"):
        Sidekiq(Engine(single.url, name=name, codec="msgpack"))
    with pytest.raises(InvalidUrl, match="ends with the queue"):
        check(Route("sidekiq+redis://127.0.0.1:1"))
    sidekiq.push("HardJob")
    with pytest.raises(InvalidOption, match="already"):
        Sidekiq(engine, to="sidekiq+redis://127.0.0.1:1").push("HardJob")
    assert repr(sidekiq) == f"<Sidekiq 8 through {name!r}>"


def test_the_examples_of_the_docstrings(engine: Engine) -> None:
    names = {"Sidekiq": Sidekiq, "engine": engine}
    for value in (Sidekiq, Sidekiq.push, Sidekiq.push_many, Sidekiq.cancel):
        assert run_examples(value, names)


@pytest.mark.slow
def test_the_program_of_the_page(single: Server, name: str, tmp_path: Path, client: redis.Redis) -> None:
    out = run_program("integrations/sidekiq", f"{single.url}/{DB}", tmp_path, name=("sidekiq-page", name))
    assert out == "1\nRemindJob [42, 'ann']\n"
