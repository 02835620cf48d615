"""A cancel and a reschedule belong to the caller's transaction, and are carried out in the order of their id's rows."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import shardq
from shardq import outbox
from shardq.outbox import OutboxRelay

LATER = dt.datetime(2031, 1, 1, tzinfo=dt.UTC)


def _kinds(database: sa.Engine) -> list[str]:
    with database.connect() as connection:
        return list(
            connection.execute(
                sa.select(outbox.table.c.kind).where(outbox.table.c.moved.is_(None)).order_by(outbox.table.c.seq)
            ).scalars()
        )


def _moved(engine: shardq.Engine, database: sa.Engine) -> None:
    with contextlib.closing(OutboxRelay(engine, database)) as relay:
        while relay.step():
            pass


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_push_that_is_still_here_is_taken_back(database: sa.Engine, engine: shardq.Engine) -> None:
    with Session(database) as session, session.begin():
        cancelled = outbox.push(session, 1)
        moved = outbox.push(session, 2, id="moved")
        outbox.push(session, 3, id="Moved")
    with Session(database) as session:
        assert outbox.cancel(session, cancelled)
        assert outbox.reschedule(session, moved, at=LATER)
        session.rollback()
    assert _kinds(database) == ["push"] * 3, "a rollback takes them back"
    with Session(database) as session, session.begin():
        assert outbox.cancel(session, cancelled)
        assert outbox.reschedule(session, moved, at=LATER)
    assert _kinds(database) == ["push", "push", "cancel", "reschedule"]
    _moved(engine, database)
    assert _kinds(database) == []
    assert engine.get(cancelled) is None
    task, other = engine.get("moved"), engine.get("Moved")
    assert task is not None
    assert task.due == LATER
    assert other is not None
    assert other.due != LATER


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_was_moved_before_is_reached_by_a_row(database: sa.Engine, engine: shardq.Engine) -> None:
    with Session(database) as session, session.begin():
        ids = outbox.push_many(session, [shardq.Task(n, id=f"n{n}", delay=600) for n in range(3)])
    _moved(engine, database)
    with Session(database) as session, session.begin():
        assert not outbox.cancel(session, ids[0])
        assert not outbox.reschedule(session, ids[1], at=LATER)
        assert not outbox.cancel(session, ids[2])
        outbox.push(session, "again", id="n2", delay=600)
        assert not outbox.cancel(session, "unknown")
    _moved(engine, database)
    assert _kinds(database) == []
    tasks = [engine.get(id) for id in ids]
    assert tasks[0] is None
    assert tasks[1] is not None
    assert tasks[1].due == LATER
    assert tasks[2] is not None
    assert tasks[2].payload == "again", "the later push comes after the cancel"


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_push_that_a_relay_is_just_moving_is_not_waited_for(database: sa.Engine, engine: shardq.Engine) -> None:
    with database.begin() as connection:
        outbox.push(connection, 1, id="a", delay=600)
    with database.connect() as relay:
        relay.execute(sa.select(outbox.table).with_for_update())
        with database.begin() as connection:
            assert not outbox.cancel(connection, "a")
        relay.rollback()
    assert _kinds(database) == ["push", "cancel"]
    _moved(engine, database)
    assert engine.get("a") is None


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_in_asyncio_they_are_awaited(database_url: str, database: sa.Engine, engine: shardq.Engine) -> None:
    asynchronous = database_url.replace("sqlite:", "sqlite+aiosqlite:").replace("+psycopg:", "+asyncpg:")

    async def main() -> None:
        engine = create_async_engine(asynchronous)
        async with AsyncSession(engine) as session:
            await outbox.push(session, 1, id="a")
            await outbox.push(session, 2, id="b")
            assert await outbox.cancel(session, "a")
            assert await outbox.reschedule(session, "b", at=LATER)
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    _moved(engine, database)
    task = engine.get("b")
    assert task is not None
    assert task.due == LATER
    assert engine.get("a") is None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_wrong_arguments_are_refused_in_words(database: sa.Engine) -> None:
    with pytest.raises(shardq.BadInput, match="session or connection"):
        outbox.cancel(database, "a")  # type: ignore[call-overload]  # wrong on purpose
    with database.connect() as connection:
        with pytest.raises(shardq.errors.InvalidId):
            outbox.cancel(connection, "/a")
        with pytest.raises(shardq.errors.InvalidDelay, match="reschedule needs a time"):
            outbox.reschedule(connection, "a")


@pytest.mark.parametrize("kind", [shardq.Engine, shardq.AsyncEngine])
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_named_task_is_pushed_with_checked_arguments(
    database: sa.Engine, kind: type[shardq.Engine] | type[shardq.AsyncEngine], url: str, name: str
) -> None:
    def written(to: str, text: str) -> None:
        pass

    send: shardq.NamedTask[..., None, Any] = kind(url, name=name, shards=2).task(
        topic="mail", name="send", max_attempts=3
    )(written)
    with database.begin() as connection:
        first = outbox.push(connection, send.call("ann@example.org", text="hello"))
        second = outbox.push(connection, send.options(delay=600, id="second").call("bob", "later"))
        with pytest.raises(shardq.errors.InvalidOption, match=r"send can't be pushed with these arguments: .* 'text'"):
            send.call("ann@example.org")
        with pytest.raises(shardq.errors.InvalidOption, match="durability"):
            send.options(durability="fsynced").call("a", "b")
    with shardq.Engine(url, name=name, shards=2) as engine:
        _moved(engine, database)
        task, later = engine.get(first), engine.get(second)
    assert task is not None
    assert (task.topic, task.max_attempts) == ("mail", 3)
    assert task.payload == {"task": "send", "args": ["ann@example.org"], "kwargs": {"text": "hello"}}
    assert later is not None
    assert (later.id, later.state) == ("mail/second", "scheduled")
