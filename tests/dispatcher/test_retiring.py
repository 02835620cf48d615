"""Topics that nobody uses are retired while tasks come and go: each task is in a topic that its shard lists."""

from __future__ import annotations

import random
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from shardq import Engine, Task
from shardq.core.dispatcher import retiring
from shardq.core.dispatcher.retiring import Retirer, retire
from shardq.core.model.ids import topic_of
from shardq.core.operation import run
from shardq.engine.access import EngineAccess
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S
from tests.support.waiting import wait_until

SHARDS = 2


@pytest.fixture
def engine(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A topic of it is idle as soon as nothing is pushed."""
    monkeypatch.setattr(retiring, "IDLE_MS", 0)
    with Engine(url, name=name, shards=SHARDS) as engine:
        yield engine


def unlisted(servers: Servers, name: str) -> list[str]:
    return [
        id
        for keys in keys_of(name, SHARDS)
        for id in map(bytes.decode, servers.ask(keys.slot, "HKEYS", keys.task))
        if not servers.ask(keys.slot, "HEXISTS", keys.topics, topic_of(id))
    ]


def test_a_push_at_that_instant_keeps_its_topic(engine: Engine, servers: Servers, name: str) -> None:
    """Between any two of the calls by which topics are retired."""
    driver, cache = EngineAccess(engine).open_driver(), EngineAccess(engine).cache
    draw, pending, retired = random.Random(1), list[str](), 0

    def push_and_cancel() -> None:
        pending.extend(engine.push_many([Task("x", topic=f"topic-{draw.randrange(40)}", delay=FAR_S)]))
        while len(pending) > 5:
            engine.cancel(pending.pop(0))

    for _ in range(50):
        push_and_cancel()
        before = engine.stats().topics.keys()
        run(driver, retire(cache, rest=push_and_cancel))
        retired += len(before - engine.stats().topics.keys())
        assert unlisted(servers, name) == []
    assert retired > 0


def test_the_first_of_the_dispatchers_retires(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retiring, "EVERY_S", 0.2)
    engine.cancel(engine.push("x", topic="mail", delay=FAR_S))
    driver, cache = EngineAccess(engine).open_driver(), EngineAccess(engine).cache
    beside = [SimpleNamespace(process=process, members=("b", "a"), clock_ms=lambda: 0.0) for process in ("a", "b")]
    first, second = (Retirer(driver, cache, each) for each in beside)
    second.loop.start()
    first.loop.start()
    wait_until(lambda: "mail" not in engine.stats().topics, "the topic is not listed any more")
    for each in (second, first):
        each.loop.stop()
        each.loop.join()
        assert not each.loop.fault
