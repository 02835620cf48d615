"""The database is restored from an earlier state: loaders stop before a task runs twice, and say what to do. They go on
where Redis remembers all that is back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from shardq import Engine, Receipt, Task, Unavailable
from shardq.engine.around import EngineAccess
from shardq.features.far import statements as sql
from shardq.features.far import witness
from shardq.features.far.store import Session
from shardq.features.far.witness import OlderFarStore
from shardq.relay.witness import stamp
from tests.far.conftest import Make, later
from tests.support.findings import red
from tests.support.states import counted
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("soon")

TASKS = 20
AFTER_S, DUE_S = 0.5, 2.0
REMEMBERED_S = 3.0
"""Longer than Redis remembers what was moved, with that ``ahead``."""


@pytest.fixture
def operator(url: str, name: str, database: str) -> Iterator[Engine]:
    """What an operator's commands open: an engine for threads."""
    engine = Engine(url, name=name, far=database)  # not opened yet: who opens the table first says its ``ahead``
    yield engine
    engine.close()


class Backup:
    """The rows of a far store, as a dump has them."""

    def __init__(self, operator: Engine) -> None:
        far = operator._far
        assert far is not None
        self._store = far.store
        self._rows = self._store.attempt(self._read, later())

    def restore(self) -> None:
        self._store.attempt(self._write, later())

    def _read(self, session: Session, _: bool) -> dict[str, list[tuple[Any, ...]]]:
        return {table: session.run(f"SELECT * FROM {table}") for table in (sql.TABLE, sql.OWNER)}

    def _write(self, session: Session, _: bool) -> None:
        with session.transaction():
            for table, rows in self._rows.items():
                session.change(f"DELETE FROM {table}")
                for row in rows:
                    values = {f"c{number}": value for number, value in enumerate(row)}
                    session.change(f"INSERT INTO {table} VALUES ({', '.join(f':{name}' for name in values)})", values)


def handled(engine: Engine, count: int) -> list[str]:
    consumer, met = engine.consumer(), list[str]()
    while len(met) < count:
        deliveries = consumer.claim(count, wait=10)
        assert deliveries, f"{len(met)} of {count}"
        met += [delivery.id for delivery in deliveries]
        consumer.ack(deliveries)
    return met


def handled_all(engine: Engine, operator: Engine, *, beats: bool) -> tuple[list[Receipt], Backup]:
    """All tasks of the table are handled. Returns their ids, and a backup from before that."""
    ids = engine.push_many([Task(n, delay=DUE_S) for n in range(TASKS)])
    if beats:
        EngineAccess(operator).load_far()
    backup = Backup(operator)
    engine.start()
    assert sorted(handled(engine, TASKS)) == sorted(ids)
    wait_until(lambda: engine.stats().far.tasks == 0, "the table is empty")  # type: ignore[union-attr]
    return ids, backup


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("beats", [False, True], ids=["before its first beat", "after one"])
@pytest.mark.parametrize("drops", [False, True], ids=["all again", "the others alone"])
def test_a_database_that_goes_back(
    make: Make, operator: Engine, monkeypatch: pytest.MonkeyPatch, *, beats: bool, drops: bool
) -> None:
    monkeypatch.setattr(witness, "BEAT_S", 0.0)
    engine = make(ahead=AFTER_S)
    ids, backup = handled_all(engine, operator, beats=beats)
    engine.stop()
    until = time.time()
    time.sleep(REMEMBERED_S)
    backup.restore()
    later_one = engine.push("pushed since", delay=DUE_S)
    engine.start()
    wait_until(lambda: "far" in red(engine.health()), "it is told")
    [reason] = [each for each in engine.health().reasons if "came back from" in each]
    assert "`shardq far accept`" in reason
    with pytest.raises(Unavailable, match="came back from"):
        engine.get(ids[0])
    time.sleep(DUE_S)
    assert engine.consumer().claim(TASKS, wait=0) == []
    assert engine.stats().far.tasks == TASKS + 1  # type: ignore[union-attr]

    if drops:
        told = reason.partition("--due-before ")[2].partition("`")[0]
        assert stamp(round(1000 * (until - 10))) <= told <= stamp(round(1000 * (until + AFTER_S + 2)))
        assert EngineAccess(operator).drop_far(until) == TASKS
    EngineAccess(operator).accept_far()
    assert sorted(handled(engine, 1 if drops else TASKS + 1)) == sorted([later_one] if drops else [*ids, later_one])
    wait_until(lambda: "far" not in red(engine.health()), "it is over")


@pytest.mark.slow
def test_a_database_that_goes_back_under_a_loader(
    make: Make, operator: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next beat is far: the next pass sees that the last one is gone."""
    engine = make(ahead=AFTER_S)
    monkeypatch.setattr(witness, "BEAT_S", 600.0)
    _, backup = handled_all(engine, operator, beats=False)
    time.sleep(REMEMBERED_S)
    backup.restore()
    wait_until(lambda: "far" in red(engine.health()), "it is told")
    assert engine.consumer().claim(TASKS, wait=1) == []


@pytest.mark.slow
def test_what_redis_remembers_is_no_reason_to_stop(make: Make, operator: Engine) -> None:
    """As when a standby takes over that lags by some seconds."""
    engine = make(ahead=20)
    engine.open()
    ids = engine.push_many([Task(n, delay=22) for n in range(TASKS)])
    EngineAccess(operator).load_far()
    backup = Backup(operator)
    engine.start()
    wait_until(lambda: engine.stats().far.tasks == 0, "they are loaded")  # type: ignore[union-attr]
    assert engine.cancel_all(everything=True).done == TASKS
    backup.restore()
    assert engine.stats().far.tasks == TASKS  # type: ignore[union-attr]
    wait_until(lambda: engine.stats().far.tasks == 0, "they are loaded")  # type: ignore[union-attr]
    assert counted(engine).scheduled == 0
    assert [engine.get(id) for id in ids] == [None] * TASKS
    assert "far" not in red(engine.health())


def test_a_shard_that_is_away_is_no_reason_to_accept(engine: Engine, operator: Engine) -> None:
    engine.open()
    access = EngineAccess(operator)
    loader: Any = access._engine._loader(access.open_driver(), "by hand", lambda: ())
    loader._ready()
    loader._witness._ask = lambda *_: {0: (7, 0), 1: Unavailable("it is away")}
    with pytest.raises(Unavailable, match="it is away"):
        loader.accept()
    loader._store.attempt(lambda session, _: session.change(f"UPDATE {sql.OWNER} SET beat = 1"), later())
    loader._witness._ask = lambda *_: {0: (7_000, 0)}
    with pytest.raises(OlderFarStore):
        loader.once()


def test_a_shard_that_does_not_answer_hides_nothing(engine: Engine, operator: Engine) -> None:
    """No beat is given out before all have told theirs, and nothing is loaded before one has."""
    engine.open()
    access = EngineAccess(operator)
    loader: Any = access._engine._loader(access.open_driver(), "by hand", lambda: ())
    loader._ready()
    loader._store.attempt(lambda session, _: session.change(f"UPDATE {sql.OWNER} SET beat = 1"), later())
    away = Unavailable("it is away")
    loader._witness._ask = lambda *_: {0: away, 1: away}
    with pytest.raises(Unavailable, match="it is away"):
        loader.once()
    loader._witness._ask = lambda *_: {0: (0, 0), 1: away}
    loader.once()
    assert loader._store.owner(later()).beat == 1
    loader._witness._next_at = 0.0
    loader._witness._ask = lambda *_: {0: (0, 0), 1: (7_000, 0)}
    with pytest.raises(OlderFarStore):
        loader.once()
