"""The handle of a resize is the same on both engines, and shows what it was told last."""

from __future__ import annotations

import inspect

import pytest

from shardq import AsyncGrowth, Engine, Growth, InvalidShardCount, Task
from tests.resharding.conftest import SHARDS
from tests.support.engines import Engines
from tests.support.states import FAR_S


@pytest.fixture
def engine(engines: Engines, url: str, name: str) -> Engine:
    return engines.opened(url, name=name, shards=SHARDS, timeout=10.0)


def test_both_kinds_are_asked_in_the_same_way() -> None:
    names = {name for name in vars(Growth) if not name.startswith("_")}
    assert names == {"progress", "done", "wait"} == {name for name in vars(AsyncGrowth) if not name.startswith("_")}
    for name in names:
        assert inspect.isfunction(getattr(Growth, name))
        assert inspect.iscoroutinefunction(getattr(AsyncGrowth, name))


def test_it_shows_what_was_seen_last_and_asks_nobody(engines: Engines, engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S) for n in range(20)])
    growth = engine.expand(2 * SHARDS)
    kind = "Growth" if engines.kind == "sync" else "AsyncGrowth"
    assert repr(growth) == f"<{kind}: progress() has not been asked yet>"
    assert not engines.done(growth.done())
    seen = repr(growth)
    assert seen == f"<{kind}: {engines.done(growth.progress())}>"
    assert "swept=0, of=8" in seen
    assert not engines.done(growth.wait(0))
    engine.start()
    assert engines.done(growth.wait(30))
    assert "swept=8, of=8" in repr(growth)
    engine.close()
    assert "swept=8, of=8" in repr(growth), "also when nobody can be asked"


def test_there_and_back_by_one_verb(engines: Engines, engine: Engine) -> None:
    ids = engine.push_many([Task(n, delay=FAR_S) for n in range(100)])
    engine.start()
    for shards in (2 * SHARDS, 3, SHARDS):
        growth = engine.resize(shards, rate=100_000)
        assert engine.topology.shards == shards
        assert engines.done(growth.wait(30))
        assert engines.done(growth.progress()).shards == shards
    assert [id for id in ids if not engine.cancel(id)] == []


def test_one_verb_goes_on_with_what_another_began(engines: Engines, engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S) for n in range(20)])
    assert not engines.done(engine.expand(2 * SHARDS).done())
    engine.start()
    assert engines.done(engine.resize(2 * SHARDS).wait(30))
    with pytest.raises(InvalidShardCount, match=r"there are 8 shards, so expand\(2\) is not possible; use shrink\(2\)"):
        engine.expand(2)
