"""What falls due is loaded, and each task is handled once, whatever happens to loaders and databases."""

from __future__ import annotations

import time
from typing import Any

import pytest

from shardq import Engine, Outcome, Task
from shardq.features.far import loader
from tests.far.conftest import Make
from tests.support.findings import red
from tests.support.states import counted
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("soon")]

AFTER_S = 1.0


@pytest.fixture
def engine(make: Make) -> Engine:
    return make(ahead=AFTER_S)


def rows_of(engine: Engine) -> int:
    far = engine.stats().far
    assert far is not None
    assert far.tasks is not None, far
    return far.tasks


def claimed(engine: Engine, count: int, *, timeout: float = 40.0) -> dict[str, float]:
    """Id → when it was claimed; until there were so many, and a moment longer."""
    seen: dict[str, float] = {}
    consumer, end = engine.consumer(), time.monotonic() + timeout
    while len(seen) < count and time.monotonic() < end:
        deliveries = consumer.claim(100, wait=1.0)
        for each in deliveries:
            assert each.id not in seen, "it came twice"
            seen[each.id] = time.time()
        if deliveries:
            consumer.ack(deliveries)
    assert consumer.claim(100, wait=1.5) == []
    return seen


def test_each_is_handled_once_and_none_early(engine: Engine) -> None:
    engine.start()
    ids = engine.push_many([Task(n, delay=3 + n / 100) for n in range(200)])
    due: dict[str, float] = {id: time.time() + 3 + n / 100 for n, id in enumerate(ids)}
    assert rows_of(engine) == 200
    seen = claimed(engine, 200)
    assert seen.keys() == set(ids)
    for id, at in seen.items():
        assert at > due[id] - 0.5
    wait_until(lambda: rows_of(engine) == 0, "nothing is left in the table")
    assert engine.stats().far.loaded == 200  # type: ignore[union-attr]


def test_several_loaders_share(make: Make) -> None:
    engines = [make(ahead=6) for _ in range(3)]
    engine = engines[0]
    engine.push("opened", delay=0)
    for each in engines:
        each.start()
    for each in engines:
        wait_until(lambda each=each: len(each.stats().dispatchers) == 3, "all know each other")  # type: ignore[misc]
    ids = engine.push_many([Task(n, delay=7.5) for n in range(300)])
    wait_until(lambda: rows_of(engine) == 0, "all are loaded")
    loaded = [each.stats().far.loaded or 0 for each in engines]  # type: ignore[union-attr]
    assert sum(loaded) >= 300  # what is overdue for its load is everybody's
    assert all(loaded), loaded
    assert claimed(engine, 301).keys() > set(ids)


def test_what_was_overdue_when_the_first_dispatcher_starts(engine: Engine) -> None:
    ids = engine.push_many([Task(n, delay=2.2) for n in range(50)])
    assert rows_of(engine) == 50
    time.sleep(3)
    engine.start()
    assert claimed(engine, 50).keys() == set(ids)


@pytest.mark.promise
def test_cancelled_and_rescheduled_on_their_way(engine: Engine) -> None:
    """Each is cancelled, or runs once, at its last time."""
    engine.start()
    ids = engine.push_many([Task(n, delay=2.5 + n / 200) for n in range(300)])
    cancelled, moved = set(), set()
    for id in ids[::3]:
        if engine.cancel(id) is Outcome.CANCELLED:
            cancelled.add(id)
    for id in ids[1::3]:
        if engine.reschedule(id, delay=2) is Outcome.MOVED:
            moved.add(id)
    seen = claimed(engine, 300 - len(cancelled))
    assert seen.keys() == set(ids) - cancelled
    assert cancelled
    assert moved


def test_a_row_that_can_not_be_moved_holds_up_no_other(engine: Engine) -> None:
    """It was put there by another program."""
    engine.start()
    ids = engine.push_many([Task(n, delay=2.5) for n in range(20)])
    made: Any = engine if isinstance(engine, Engine) else engine._target
    store = made._far.store
    from shardq.features.far import statements as sql

    def spoil(session: Any, _: bool) -> None:
        assert session.change(f"UPDATE {sql.TABLE} SET id = :id WHERE id = (SELECT min(id) FROM {sql.TABLE})",
                              {"id": "a/b\x01"}) == 1  # fmt: skip

    store.attempt(spoil, time.monotonic() + 10)
    seen = claimed(engine, 19)
    assert len(seen) == 19
    assert set(ids) > seen.keys()
    reasons = [text for text in engine.health().reasons if "can't be moved to Redis" in text]
    assert len(reasons) == 1


def test_a_database_that_is_away_makes_nothing_late(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """For less than ``ahead``; and it is told meanwhile."""
    engine.start()
    ids = engine.push_many([Task(n, delay=2.5) for n in range(20)])
    wait_until(lambda: counted(engine).scheduled == 20, "all are loaded")
    fails = loader.Loader._pass

    def broken(*_: Any) -> int:
        from shardq.errors import Unavailable

        raise Unavailable("the far store is away")

    monkeypatch.setattr(loader.Loader, "_pass", broken)
    wait_until(lambda: "far" in red(engine.health()), "it is told")
    assert claimed(engine, 20).keys() == set(ids)
    monkeypatch.setattr(loader.Loader, "_pass", fails)
    wait_until(lambda: "far" not in red(engine.health()), "it is over")
