"""The outbox under a clock that a test moves: rows count by its time, and their relays move them at its instants."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import shardq
from shardq import outbox
from shardq.outbox import OutboxRelay
from shardq.testing import AsyncClock, Clock

FAR = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/app.db"


@pytest.fixture
def database(path: str) -> Iterator[sa.Engine]:
    database = sa.create_engine(f"sqlite:///{path}")
    outbox.create(database)
    yield database
    database.dispose()


@pytest.fixture
def clock(url: str) -> Iterator[Clock]:
    with Clock(url, start=FAR) as clock:
        yield clock


def _push(database: sa.Engine, payload: object, **options: object) -> None:
    with Session(database) as session, session.begin():
        outbox.push(session, payload, **options)  # type: ignore[call-overload]


def _rows(database: sa.Engine) -> list[int]:
    """When the rows that wait were made, in seconds after the beginning."""
    with database.connect() as connection:
        made = connection.execute(sa.select(outbox.table.c.created).where(outbox.table.c.moved.is_(None))).scalars()
        return [round(ms / 1000 - FAR.timestamp()) for ms in made]


def test_rows_are_handled_at_their_instants_of_virtual_time(clock: Clock, database: sa.Engine) -> None:
    engine = shardq.Engine(shards=3)
    relay = OutboxRelay(engine, database)  # also one that is older than the clock
    clock.adopt(engine)
    with relay:
        worker, seen = engine.worker(), []

        @worker.on("")
        def handle(delivery: shardq.Delivery) -> None:
            seen.append((delivery.payload, (clock.now() - FAR).total_seconds()))
            if delivery.payload == "first":
                _push(database, "second", delay=3600)
                _push(database, "at once")

        clock.bind(worker)
        _push(database, "first", delay=86_400)
        assert _rows(database) == [0]
        clock.advance(days=1, seconds=-0.001)
        assert seen == []
        clock.advance(days=1)
        assert seen == [("first", 86_400), ("at once", 86_400), ("second", 90_000)]
        _push(database, "later")
        assert _rows(database) == [round((clock.now() - FAR).total_seconds())]
        shardq.testing.assert_ready(engine, "later")
        assert relay.moved == 4
        with database.connect() as connection:
            owners = connection.execute(outbox.default_outbox.owner.select()).all()
        assert [row for row in owners if row.name == engine.name] == [], "a test's engine takes no table"


def test_expiries_count_by_the_clock_too(clock: Clock, database: sa.Engine) -> None:
    engine = clock.adopt(shardq.Engine(shards=1))
    with OutboxRelay(engine, database):
        _push(database, "short", delay=10, expires=60)
        clock.advance(minutes=5)
        assert engine.consumer().claim(1) == []
        with pytest.raises(shardq.errors.InvalidOption, match="by the clock of this machine"):
            _push(database, "over", expires=FAR)


def test_a_relay_moves_rows_while_it_is_started(clock: Clock, database: sa.Engine) -> None:
    engine = clock.adopt(shardq.Engine(shards=1))
    relay = OutboxRelay(engine, database)
    _push(database, 1)
    for is_started in (False, True, False):
        _push(database, 2)
        before = len(_rows(database))
        if is_started:
            relay.start()
        clock.advance(hours=1)
        assert len(_rows(database)) == (0 if is_started else before)
        if is_started:
            relay.stop()
    with relay:
        with database.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE shardq_outbox RENAME TO away")
        with pytest.raises(sa.exc.OperationalError, match="no such table"):
            clock.advance(hours=1)


def test_the_clock_for_asyncio_moves_rows_too(url: str, path: str, database: sa.Engine) -> None:
    async def main() -> None:
        source = create_async_engine(f"sqlite+aiosqlite:///{path}")
        async with AsyncClock(url, start=FAR) as clock:
            engine = clock.adopt(shardq.AsyncEngine(shards=2))
            worker, seen = engine.worker(), []

            @worker.on("")
            async def handle(delivery: shardq.Delivery) -> None:
                seen.append((delivery.payload, (clock.now() - FAR).total_seconds()))
                if delivery.payload < 3:
                    async with AsyncSession(source) as session, session.begin():
                        await outbox.push(session, delivery.payload + 1, delay=60)

            clock.bind(worker)
            with OutboxRelay(engine, database):
                async with AsyncSession(source) as session, session.begin():
                    await outbox.push(session, 1, delay=3600)
                await clock.advance(days=1)
            assert seen == [(1, 3600), (2, 3660), (3, 3720)]
        await source.dispose()

    asyncio.run(main())


def test_after_the_clock_rows_count_by_the_time_of_the_process(url: str, database: sa.Engine) -> None:
    with Clock(url, start=FAR) as clock:
        clock.adopt(shardq.Engine(shards=1))
        _push(database, 1)
    _push(database, 2)
    with database.connect() as connection:
        in_test, after = connection.execute(sa.select(outbox.table.c.created)).scalars()
    assert in_test == FAR.timestamp() * 1000
    assert after < time.time() * 1000 + 1
