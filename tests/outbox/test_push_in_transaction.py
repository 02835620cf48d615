"""A push into the outbox belongs to the caller's transaction, and is checked like any other push."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import get_type_hints

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import shardq
from shardq import outbox
from shardq.core.model.task_options import PushOptions, TaskOptions


def _rows(database: sa.Engine) -> list[sa.Row[tuple[object, ...]]]:
    with database.connect() as connection:
        return list(connection.execute(outbox.table.select().order_by(outbox.table.c.seq)).all())


def test_a_commit_keeps_the_task_and_a_rollback_does_not(database: sa.Engine) -> None:
    with Session(database) as session:
        kept = outbox.push(session, {"order": 42}, delay=60, topic="mail")
        session.commit()
        outbox.push(session, {"order": 43})
        session.rollback()
    with database.begin() as connection:
        second = outbox.push(connection, "hello")
    assert [row.id for row in _rows(database)] == [kept, second]
    assert kept.startswith("mail/")


def test_a_savepoint_that_is_rolled_back_takes_its_tasks_along(database: sa.Engine) -> None:
    with Session(database) as session, session.begin():
        kept = outbox.push(session, 1)
        savepoint = session.begin_nested()
        outbox.push(session, 2)
        savepoint.rollback()
    assert [row.id for row in _rows(database)] == [kept]


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_push_in_asyncio_belongs_to_the_transaction_too(database_url: str, database: sa.Engine, kind: str) -> None:
    asynchronous = database_url.replace("sqlite:", "sqlite+aiosqlite:").replace("+psycopg:", "+asyncpg:")

    async def main() -> list[str]:
        engine = create_async_engine(asynchronous)
        try:
            if kind == "session":
                async with AsyncSession(engine) as session:
                    kept = [await outbox.push(session, 1, delay=5)]
                    kept += await outbox.push_many(session, [shardq.Task(2), shardq.Task(3, topic="mail")])
                    await session.commit()
                    await outbox.push(session, 4)
            else:
                async with engine.connect() as connection:
                    kept = [await outbox.push(connection, 1, delay=5)]
                    kept += await outbox.push_many(connection, [shardq.Task(2), shardq.Task(3, topic="mail")])
                    await connection.commit()
                    await outbox.push(connection, 4)
            return kept
        finally:
            await engine.dispose()

    kept = asyncio.run(main())
    assert [row.id for row in _rows(database)] == kept
    assert len(kept) == 3


def test_an_async_engine_makes_the_table(database_url: str, database: sa.Engine) -> None:
    other = outbox.Outbox("other_outbox")

    async def main() -> None:
        engine = create_async_engine(
            database_url.replace("sqlite:", "sqlite+aiosqlite:").replace("+psycopg:", "+asyncpg:")
        )
        await asyncio.gather(*(other.create(engine) for _ in range(3)))
        await engine.dispose()

    asyncio.run(main())
    with database.begin() as connection:
        other.push(connection, 1)
    assert sa.inspect(database).has_table("other_outbox")


def test_times_are_instants_from_the_push_on(database: sa.Engine) -> None:
    before = int(time.time() * 1000)
    instant = dt.datetime(2031, 1, 1, tzinfo=dt.UTC)
    with database.begin() as connection:
        outbox.push(connection, "late", delay=60)
        outbox.push(connection, "at", at=instant)
        outbox.push(connection, "now")
    after = int(time.time() * 1000)
    late, at, now = (row.due for row in _rows(database))
    assert before + 60_000 <= late <= after + 60_001
    assert at == instant.timestamp() * 1000
    assert now == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"delay": -1}, shardq.errors.InvalidDelay),
        ({"delay": 1, "at": 2e9}, shardq.errors.DelayAndAt),
        ({"topic": "no way"}, shardq.errors.InvalidTopic),
        ({"dedup": 5}, shardq.errors.DedupWithoutId),
        ({"id": "a/b"}, shardq.errors.InvalidId),
        ({"delay": 10, "expires": 5}, shardq.errors.InvalidOption),
        ({"at": 2e9, "expires": 5}, shardq.errors.InvalidOption),
        ({"durability": "fsynced"}, shardq.BadInput),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_stored(
    database: sa.Engine, options: dict[str, object], error: type[Exception]
) -> None:
    with database.begin() as connection, pytest.raises(error):
        outbox.push(connection, 1, **options)  # type: ignore[call-overload]  # wrong on purpose
    assert _rows(database) == []


def test_an_expiry_that_is_over_is_told_as_such(database: sa.Engine) -> None:
    over = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    for options in ({}, {"delay": 5}, {"at": dt.datetime(2019, 1, 1, tzinfo=dt.UTC)}):
        with (
            database.begin() as connection,
            pytest.raises(shardq.errors.InvalidOption, match="would never be handled"),
        ):
            outbox.push(connection, 1, expires=over, **options)


@pytest.mark.parametrize("kind", ["session", "async"])
def test_a_session_with_binds_pushes_by_that_of_the_table(database_url: str, database: sa.Engine, kind: str) -> None:
    asynchronous = database_url.replace("sqlite:", "sqlite+aiosqlite:").replace("+psycopg:", "+asyncpg:")
    orders = sa.Table("orders", sa.MetaData(), sa.Column("id", sa.Integer))

    def push(binds: dict[sa.Table, sa.Engine]) -> None:
        with Session(binds=binds) as session, session.begin():  # type: ignore[arg-type]
            outbox.push(session, 1)
            outbox.push_many(session, [shardq.Task(2)])

    async def push_async(names: list[sa.Table]) -> None:
        engine = create_async_engine(asynchronous)
        async with AsyncSession(binds=dict.fromkeys(names, engine)) as session, session.begin():
            await outbox.push(session, 1)
            await outbox.push_many(session, [shardq.Task(2)])
        await engine.dispose()

    def pushed(*names: sa.Table) -> int:
        if kind == "session":
            push(dict.fromkeys(names, database))
        else:
            asyncio.run(push_async([*names]))
        return len(_rows(database))

    with pytest.raises(shardq.BadInput, match=r"add shardq\.outbox\.table to binds="):
        pushed(orders)
    assert pushed(orders, outbox.table) == 2


def test_what_is_no_transaction_is_refused_in_words(database: sa.Engine) -> None:
    with pytest.raises(shardq.BadInput, match="session or connection"):
        outbox.push(database, 1)  # type: ignore[call-overload]  # wrong on purpose


def test_a_payload_that_is_too_large_is_refused(database: sa.Engine) -> None:
    small = outbox.Outbox(max_payload=10)
    with database.begin() as connection, pytest.raises(shardq.errors.PayloadTooLarge):
        small.push(connection, "x" * 20)


def test_the_table_can_be_made_again_and_by_the_printed_sql(database: sa.Engine) -> None:
    outbox.create(database)
    other = outbox.Outbox("pasted_outbox")
    with database.begin() as connection:
        for statement in other.sql(database.dialect.name).split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        other.push(connection, "hello")
    other.create(database)
    assert {column["name"] for column in sa.inspect(database).get_columns("pasted_outbox")} == set(other.table.c.keys())


def test_the_table_can_be_among_the_users_own() -> None:
    metadata = sa.MetaData()
    outbox.Outbox("app_outbox", metadata=metadata, schema="app")
    assert list(metadata.tables) == ["app.app_outbox", "app.app_outbox_engine"]


def test_it_takes_the_options_of_a_task() -> None:
    assert get_type_hints(PushOptions) == get_type_hints(TaskOptions)
