"""Opening, closing and opening again."""

from __future__ import annotations

import asyncio
import select
import selectors
import sys
from types import ModuleType

import pytest

from shardq import AsyncEngine, BadInput, Engine, ShardqError, Task
from shardq.errors import EngineClosed, InvalidTopic
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.square


def test_a_closed_engine_says_so(engine: Engine) -> None:
    id = engine.push("x", delay=FAR_S)
    consumer = engine.consumer()
    engine.close()
    engine.close()
    for order in (lambda: engine.push("x"), lambda: engine.get(id), engine.stats, consumer.claim):
        with pytest.raises(EngineClosed, match="closed: make a"):
            order()
    engine.open()
    assert state_of(engine, id) == "scheduled"


def test_a_with_block(engines: Engines, url: str, name: str) -> None:
    with engines.make(url, name=name, shards=SHARDS) as engine:
        engine.start()
        id = engine.push("x")
        wait_until(lambda: state_of(engine, id) == "ready", "it is dispatched")
    assert "closed" in repr(engine)
    with pytest.raises(EngineClosed):
        engine.push("x")


def test_the_first_use_opens(engines: Engines, url: str, name: str) -> None:
    engine = engines.make(url, name=name, shards=SHARDS)
    assert "not open" in repr(engine)
    with pytest.raises(EngineClosed, match="the engine is not open"):
        _ = engine.topology
    id = engine.push("x", delay=FAR_S)
    assert state_of(engine, id) == "scheduled"
    assert f"{SHARDS} shards" in repr(engine)


def test_where_eventlet_took_poll_away(engines: Engines, url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is all that matters of eventlet.monkey_patch(), and it says so before anything is written."""
    engine = engines.make(url, name=name, shards=SHARDS)
    with monkeypatch.context() as patched:
        patched.delattr(select, "poll")
        patched.delattr(selectors, "PollSelector")
        for order in (engine.open, lambda: engine.push("x"), engine.start):
            with pytest.raises(ShardqError, match="eventlet is not supported: use shardq in a process without it"):
                order()
    id = engine.push("x", delay=FAR_S)
    assert state_of(engine, id) == "scheduled"


@pytest.mark.parametrize("threads", [False, True])
def test_where_gevent_patched_sockets(
    engines: Engines, url: str, name: str, monkeypatch: pytest.MonkeyPatch, threads: bool
) -> None:
    """With real threads a green socket belongs to the thread that waits for it first."""
    monkey = ModuleType("gevent.monkey")
    patched = {"socket", "threading"} if threads else {"socket"}
    monkey.is_module_patched = patched.__contains__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)
    engine = engines.make(url, name=name, shards=SHARDS)
    if threads:
        engine.push("x", delay=FAR_S)
        return
    for order in (engine.open, lambda: engine.push("x"), engine.start):
        with pytest.raises(ShardqError, match="without thread=False"):
            order()


def test_the_first_use_of_a_consumer_opens(engines: Engines, url: str, name: str) -> None:
    producer = engines.opened(url, name=name, shards=SHARDS)
    producer.start()
    id = producer.push("x", topic="mail")
    engine = engines.make(url, name=name)
    consumer = engine.consumer("mail", name="ann")
    assert "'mail'" in repr(consumer)
    (delivery,) = consumer.claim(1, wait=30.0)
    assert delivery.id == id
    assert " ann-" in repr(consumer)
    # that of another consumer, by one that has claimed nothing
    engine.consumer("mail").ack(delivery)
    assert engine.get(id) is None
    engine.close()
    with pytest.raises(EngineClosed):
        consumer.claim(1)
    with pytest.raises(EngineClosed):
        engine.consumer()


def test_a_consumer_that_was_never_used_of_an_engine_that_is_closed(engines: Engines, url: str, name: str) -> None:
    engine = engines.make(url, name=name, shards=SHARDS)
    consumer = engine.consumer()
    engine.close()
    with pytest.raises(EngineClosed):
        consumer.claim(1)


def test_a_consumer_that_can_not_be_is_refused_before_anything_is_opened(engines: Engines) -> None:
    engine = engines.make("redis://127.0.0.1:1", timeout=0.1)
    with pytest.raises(InvalidTopic):
        engine.consumer("a b")
    with pytest.raises(BadInput):
        engine.consumer(lease=0)


def test_the_first_uses_of_a_consumer_at_once(url: str, name: str) -> None:
    async def main() -> None:
        engine = AsyncEngine(url, name=name, shards=SHARDS)
        await engine.push_many([Task(n) for n in range(10)])
        await engine.close()
        await engine.open()
        await engine.start()
        consumer = engine.consumer()
        await asyncio.gather(*(consumer.ack([]) for _ in range(5)))
        shown = repr(consumer)
        held = [delivery for _ in range(10) for delivery in await consumer.claim(1, wait=30.0)]
        await asyncio.gather(*(consumer.ack(delivery) for delivery in held))
        assert repr(consumer) == shown
        assert (await engine.stats()).leased == 0
        await engine.close()

    asyncio.run(main())


def test_two_names_do_not_meet(engines: Engines, url: str, name: str) -> None:
    one = engines.opened(url, name=f"{name}-a", shards=2)
    other = engines.opened(url, name=f"{name}-b", shards=2)
    one.push("x", delay=FAR_S, id="mine")
    assert other.get("mine") is None
    assert other.stats().scheduled == 0


def test_the_url_of_the_environment(engines: Engines, url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDQ_URL", url)
    id = engines.make(name=name, shards=SHARDS).push("x", delay=FAR_S)
    assert state_of(engines.opened(url, name=name, shards=SHARDS), id) == "scheduled"
