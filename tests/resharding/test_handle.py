"""The handle of a resize is the same on both engines, and shows what it was told last."""

from __future__ import annotations

import inspect

import pytest

from shardq import AsyncResize, Engine, Resize, Task
from shardq.errors import InvalidOption
from tests.resharding.conftest import SHARDS
from tests.support.engines import Engines
from tests.support.states import FAR_S


@pytest.fixture
def engine(engines: Engines, url: str, name: str) -> Engine:
    return engines.opened(url, name=name, shards=SHARDS, timeout=10.0)


def test_both_kinds_are_asked_in_the_same_way() -> None:
    names = {name for name in vars(Resize) if not name.startswith("_")}
    assert names == {"progress", "done", "wait"} == {name for name in vars(AsyncResize) if not name.startswith("_")}
    for name in names:
        assert inspect.isfunction(getattr(Resize, name))
        assert inspect.iscoroutinefunction(getattr(AsyncResize, name))


def test_it_shows_what_was_seen_last_and_asks_no_server(engines: Engines, engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S) for n in range(20)])
    resize = engine.resize(2 * SHARDS)
    kind = "Resize" if engines.kind == "sync" else "AsyncResize"
    assert repr(resize) == f"<{kind} to 8 shards: progress() has not been asked yet>"
    assert not engines.done(resize.done())
    seen = repr(resize)
    assert seen == f"<{kind} to 8 shards: {engines.done(resize.progress())}>"
    assert "swept=0, of=8" in seen
    assert not engines.done(resize.wait(0))
    engine.start()
    assert engines.done(resize.wait(30))
    assert "swept=8, of=8" in repr(resize)
    engine.close()
    assert "swept=8, of=8" in repr(resize), "also when no server can be asked"


def test_a_dry_run_changes_nothing_and_has_no_end(engines: Engines, engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S) for n in range(100)])
    epoch = engine.topology.epoch
    would = engine.resize(2 * SHARDS, dry_run=True)
    assert (would.shards, engine.topology.epoch) == (2 * SHARDS, epoch)
    assert would.tasks == sum(flow.tasks for flow in would.flows) == pytest.approx(50, abs=30)
    assert repr(would).endswith(f"to 8 shards: a dry run, {would.tasks} tasks would move>")
    with pytest.raises(InvalidOption, match=r"has begun nothing to wait for; resize\(8\) does"):
        engines.done(would.wait())
    assert engines.done(would.progress()).done, "of the change that was the last"
    same = engine.resize(SHARDS, dry_run=True)
    assert (same.tasks, same.flows, engines.done(same.wait())) == (0, [], True)


def test_without_a_number_it_is_the_change_under_way(engines: Engines, engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S) for n in range(20)])
    assert (engine.resize(dry_run=True).shards, engines.done(engine.resize(dry_run=True).done())) == (SHARDS, True)
    engine.resize(2 * SHARDS)
    under_way = engine.resize(dry_run=True)
    assert (under_way.shards, under_way.tasks, engines.done(under_way.done())) == (2 * SHARDS, None, False)
    engine.start()
    assert engines.done(under_way.wait(30))
