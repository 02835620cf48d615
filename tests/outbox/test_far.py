"""The outbox of an engine that has a far store: far tasks become rows of its table, and commands find them there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import shardq
from shardq import Outcome, Task, outbox
from shardq.errors import ReadOnly
from shardq.features.far.rows import is_made
from shardq.features.far.store import Lost
from shardq.outbox import OutboxRelay
from tests.support.refusing import refuse

FAR_S = 30 * 86_400.0


@pytest.fixture
def table_url(tmp_path: Path, database_url: str) -> str:
    """In the same server as the outbox, where that is one."""
    return str(tmp_path / "far.db") if database_url.startswith("sqlite") else database_url


@pytest.fixture
def engine(url: str, name: str, table_url: str) -> Iterator[shardq.Engine]:
    with shardq.Engine(url, name=name, shards=4, far=table_url) as engine:
        yield engine


def moved(engine: shardq.Engine, database: sa.Engine) -> int:
    with contextlib.closing(OutboxRelay(engine, database)) as relay:
        while relay.step():
            pass
        return relay.moved


def in_table(engine: shardq.Engine) -> int | None:
    far = engine.stats().far
    return None if far is None else far.tasks


def left(database: sa.Engine) -> int:
    with database.connect() as connection:
        return connection.execute(sa.select(sa.func.count()).where(outbox.table.c.moved.is_(None))).scalar_one()


def test_far_tasks_become_rows(database: sa.Engine, engine: shardq.Engine) -> None:
    with database.begin() as connection:
        far = outbox.push(connection, {"n": 1}, delay=FAR_S, topic="sms")
        near = outbox.push(connection, {"n": 2}, delay=60, topic="sms")
        own = outbox.push(connection, {"n": 3}, id="o", topic="mail", delay=FAR_S)
        elsewhere = outbox.push(connection, {"n": 4}, id="o", topic="sms", delay=FAR_S)
    assert (is_made(far), is_made(near), own) == (True, False, "mail/o")
    assert moved(engine, database) == 4
    assert in_table(engine) == 3
    for n, id in enumerate((far, near, own, elsewhere), 1):
        found = engine.get(id)
        assert found is not None
        assert found.payload == {"n": n}
    assert engine.reschedule(far, delay=2 * FAR_S) is Outcome.MOVED
    assert engine.cancel(far) is Outcome.CANCELLED


def test_commands_find_them(database: sa.Engine, engine: shardq.Engine) -> None:
    direct = engine.push("direct", delay=FAR_S)
    with database.begin() as connection:
        ids = outbox.push_many(connection, [Task(n, delay=FAR_S) for n in range(3)])
    moved(engine, database)
    with database.begin() as connection:
        for id in (direct, ids[0]):
            outbox.cancel(connection, id)
        outbox.reschedule(connection, ids[1], delay=60)
        outbox.reschedule(connection, ids[2], delay=2 * FAR_S)
    moved(engine, database)
    assert [engine.get(id) for id in (direct, ids[0])] == [None, None]
    assert in_table(engine) == 1
    assert engine.stats().scheduled == 1


def test_a_cancel_holds_after_a_relay_died(database: sa.Engine, engine: shardq.Engine) -> None:
    """A relay that died before it noted what it had pushed is followed by one that pushes it again."""
    with database.begin() as connection:
        ids = [
            outbox.push(connection, "made", delay=FAR_S),
            outbox.push(connection, "own", id="own", topic="mail", delay=FAR_S),
            outbox.push(connection, "near", id="near", topic="mail", delay=60),
        ]
        rows = connection.execute(sa.select(outbox.table)).all()
    assert moved(engine, database) == 3
    assert [engine.cancel(id) for id in ids] == [Outcome.CANCELLED] * 3
    with database.begin() as connection:
        connection.execute(outbox.table.delete())
        connection.execute(outbox.table.insert(), [row._asdict() for row in rows])
    assert moved(engine, database) == 3
    assert [engine.get(id) for id in ids] == [None] * 3
    assert in_table(engine) == 0


def test_again_without_a_cancel(database: sa.Engine, engine: shardq.Engine) -> None:
    with database.begin() as connection:
        ids = [outbox.push(connection, n, delay=FAR_S) for n in range(5)]
        rows = connection.execute(sa.select(outbox.table)).all()
    moved(engine, database)
    with database.begin() as connection:
        connection.execute(outbox.table.delete())
        connection.execute(outbox.table.insert(), [row._asdict() for row in rows])
    moved(engine, database)
    assert in_table(engine) == len(ids)


@pytest.mark.slow
def test_a_table_that_is_away_holds_up_what_is_for_it(
    database: sa.Engine, engine: shardq.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.push("opens it", delay=FAR_S)
    store = engine._far
    assert store is not None
    store.store.close()

    def away(deadline: float) -> object:
        raise Lost("nobody listens", sent=False)

    monkeypatch.setattr(store.store, "connect", away)
    with database.begin() as connection:
        far = outbox.push(connection, "far", delay=FAR_S)
        near = [outbox.push(connection, "near", delay=60) for _ in range(5)]
        later = outbox.push(connection, "later", delay=FAR_S)
    with OutboxRelay(engine, database) as relay:
        until = time.monotonic() + 20
        while left(database) > 2 or "the far store" not in relay.problem:
            assert time.monotonic() < until, (left(database), relay.problem)
            time.sleep(0.05)
        assert f"(id {far})" in relay.problem
        assert all(engine.get(id) for id in near)
        monkeypatch.undo()
        while left(database):
            assert time.monotonic() < until, relay.problem
            time.sleep(0.05)
    assert engine.get(later) is not None
    assert in_table(engine) == 3


def test_a_table_that_is_full_puts_no_row_aside(
    database: sa.Engine, engine: shardq.Engine, table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.push("opens it", delay=FAR_S)
    refuse(engine, table_url, "full", monkeypatch)
    with database.begin() as connection:
        far = outbox.push(connection, "x" * 100_000, delay=FAR_S)
        near = outbox.push(connection, "near", delay=60)
    with contextlib.closing(OutboxRelay(engine, database)) as relay:
        told = []
        for _ in range(3):
            try:
                relay.step()
            except shardq.ShardqError as exc:
                told.append(exc)
    assert {type(exc) for exc in told} == {ReadOnly}
    assert engine.get(near) is not None
    with database.connect() as connection:  # one that waits, and has had no tries
        assert connection.execute(
            sa.select(outbox.table.c.attempts).where(outbox.table.c.moved.is_(None))
        ).scalars().all() == [0]
    monkeypatch.undo()
    if not table_url.endswith(".db"):
        with database.begin() as connection:
            connection.execute(sa.text("DROP FUNCTION refuse CASCADE"))
    assert moved(engine, database) == 1
    assert engine.get(far) is not None


def test_a_relay_without_the_table_leaves_its_rows(
    database: sa.Engine, engine: shardq.Engine, url: str, name: str
) -> None:
    far = engine.push("far", delay=FAR_S)
    with database.begin() as connection:
        outbox.cancel(connection, far)
        outbox.push(connection, "y", id="o", topic="mail", delay=FAR_S)
        near = outbox.push(connection, "near", delay=60)
    with shardq.Engine(url, name=name) as plain, contextlib.closing(OutboxRelay(plain, database)) as relay:
        assert relay.step() == 1
        with pytest.raises(shardq.ShardqError, match="give far="):
            relay.step()
    assert engine.get(near) is not None
    assert left(database) == 2
    assert moved(engine, database) == 2
    assert engine.get(far) is None


def test_an_engine_without_a_table_takes_them_all(database: sa.Engine, url: str, name: str) -> None:
    with database.begin() as connection:
        ids = [outbox.push(connection, n, delay=FAR_S) for n in range(3)]
    with shardq.Engine(url, name=name, shards=2) as engine:
        assert moved(engine, database) == 3
        assert engine.stats().scheduled == 3
        assert [engine.cancel(id) for id in ids] == [Outcome.CANCELLED] * 3
