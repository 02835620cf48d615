"""Opening, closing and opening again."""

from __future__ import annotations

import pytest

from shardq import Engine, EngineClosed
from tests.support.engines import SHARDS, Engines
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until


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
