"""Two resizes at once, a resize whose process dies at any point, and the processes that complete it."""

from __future__ import annotations

import logging
import time

import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.resharding.migrator import ORPHANED_S
from shardq.errors import ChangeUnderWay
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration
from tests.support.states import FAR_S, state_of
from tests.support.waiting import wait_until

ANNOUNCED = 3
"""Requests after which it is announced: the topology was read, and declared."""

MOMENT_S = 10.0
"""A push is held up for half a second, on a machine that may stand still meanwhile."""


def left_announced(migration: Migration, shards: int, requests: int = ANNOUNCED) -> None:
    """Somebody began, and was killed after so many requests."""
    migration.step(migration.resizing(shards), requests)


def test_two_at_once(engine: Engine, migration: Migration) -> None:
    left_announced(migration, 8)
    with pytest.raises(ChangeUnderWay, match="a change to 8 shards is under way, so there can be none to 16") as caught:
        engine.resize(16)
    assert caught.value.pending == 8
    with pytest.raises(ChangeUnderWay):
        engine.resize(2)
    assert (engine.topology.shards, engine.topology.pending) == (SHARDS, 8)
    engine.resize(8)
    assert (engine.topology.shards, engine.topology.pending) == (8, None)


def test_two_at_once_to_the_same_number(engine: Engine, migration: Migration) -> None:
    first, second = migration.resizing(8), migration.resizing(8)
    while not (first.done and second.done):
        migration.step(first, 1)
        migration.step(second, 1)
    assert (first.result, second.result) == (None, None)
    engine.start()
    assert engine.resize(8).wait(30)
    assert (engine.topology.shards, engine.topology.priors) == (8, ())


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_an_operator_killed_at_any_point(engine: Engine, migration: Migration) -> None:
    """A second one goes on from there; meanwhile pushes are held up, but for a moment only."""
    ids = engine.push_many([Task(n, delay=FAR_S) for n in range(100)])
    requests, done = 0, False
    while not done:
        requests += 1
        target = 5 + requests % 3
        steps = migration.resizing(target)
        migration.step(steps, requests)
        done = steps.done
        began = time.monotonic()
        ids.append(engine.push("x", delay=FAR_S))
        assert time.monotonic() - began < MOMENT_S
        assert {state_of(engine, id) for id in ids[::10]} == {"scheduled"}
        engine.resize(target)
        assert (engine.topology.shards, engine.topology.pending) == (target, None)
        engine.start()
        assert engine.resize(dry_run=True).wait(30)
        engine.stop()
    assert requests > 20
    assert [id for id in ids if not engine.cancel(id)] == []
    assert engine.stats().scheduled == 0


@pytest.mark.slow
def test_dispatchers_complete_what_was_left_announced(
    engine: Engine, migration: Migration, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="shardq.resharding")
    engine.start()
    ids = engine.push_many([Task(n, delay=FAR_S) for n in range(200)])
    announced = time.time()
    left_announced(migration, 8)
    wait_until(lambda: engine.topology.shards == 8, "it is in force")
    completing = "completing the change to 8 shards, which was left announced"
    completed = [record.created for record in caplog.records if record.getMessage() == completing]
    assert min(completed) - announced > ORPHANED_S - 0.1, "whoever began it had no time"
    assert engine.resize(dry_run=True).wait(30)
    assert [id for id in ids if not engine.cancel(id)] == []


def test_an_operator_is_not_overtaken(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    """Dispatchers leave a change to who began it, and only help with the moving."""
    caplog.set_level(logging.INFO, logger="shardq.resharding")
    engine.start()
    assert engine.resize(16).wait(30)
    assert engine.resize(3).wait(30)
    # it is said when it is done, so perhaps a little later than it is seen
    wait_until(lambda: "all tasks are where they belong under 3 shards" in caplog.text, "the end is told")
    assert "left announced" not in caplog.text


def test_shards_told_and_nothing_published(engine: Engine, migration: Migration) -> None:
    """The worst moment: some shards refuse the old number, and nobody can know the new one yet."""
    engine.start()
    before = engine.topology.epoch
    steps = migration.resizing(8)
    refused = 0
    while not refused:
        migration.step(steps, 1)
        # the shard told first is the first one; see whether it takes the old epoch
        refused = int(migration.epoch_of(0) > before + 1)
        assert not steps.done
    began = time.monotonic()
    ids = engine.push_many([Task(n, delay=FAR_S) for n in range(200)])
    assert time.monotonic() - began < MOMENT_S
    assert engine.topology.shards == 8
    assert engine.resize(dry_run=True).wait(30)
    assert [id for id in ids if not engine.cancel(id)] == []


def test_other_changes_wait_for_one_that_is_announced(engine: Engine, migration: Migration) -> None:
    left_announced(migration, 8)
    engine.pause("mail")
    assert (engine.topology.shards, engine.topology.paused) == (8, frozenset({"mail"}))
    engine.resume("mail")
    assert engine.topology.paused == frozenset()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_an_operator_without_dispatchers_does_not_wait(engine: Engine, single: Server) -> None:
    took = []
    for shards in (8, 16, 32):
        began = time.monotonic()
        engine.resize(shards)
        took.append(time.monotonic() - began)
        assert engine.topology.shards == shards
    # who waits does so for three seconds, every time
    assert min(took) < 1
    assert not engine.resize(dry_run=True).done(), "nobody is there to see that nothing has to move"
