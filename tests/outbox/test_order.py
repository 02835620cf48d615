"""Rows of one id are carried out in their order, whatever the number of relays."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

import shardq
from shardq import outbox
from shardq.outbox import OutboxRelay
from tests.support.waiting import wait_until


def _push(database: sa.Engine, *tasks: shardq.Task) -> None:
    with database.begin() as connection:
        outbox.push_many(connection, tasks)


def _payload(engine: shardq.Engine, id: str) -> object:
    task = engine.get(id)
    return task and task.payload


@contextlib.contextmanager
def _held_by_another(database: sa.Engine, seq: int) -> Iterator[None]:
    """Another relay has claimed this row."""
    table = outbox.table
    with database.connect() as connection:
        connection.execute(sa.select(table).where(table.c.seq == seq).with_for_update())
        yield
        connection.rollback()


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_row_waits_for_an_earlier_one_of_its_id_that_another_relay_has(
    database: sa.Engine, engine: shardq.Engine
) -> None:
    page = r'a "page\1", {of} those'  # an array of PostgreSQL has signs of its own
    _push(
        database,
        shardq.Task("draft", id=page, delay=600, on_conflict="replace"),
        shardq.Task("other", id="other", delay=600),
        shardq.Task("best", id=page, delay=600, on_conflict="replace"),
        shardq.Task("first", id="news", delay=600, throttle=600),
    )
    with contextlib.closing(OutboxRelay(engine, database)) as relay:
        with _held_by_another(database, 1):
            assert relay.step() == 2
            assert relay.step() == 0
            assert [_payload(engine, id) for id in (page, "other", "news")] == [None, "other", "first"]
        _push(database, shardq.Task("second", id="news", delay=600, throttle=600))
        assert relay.step() == 3
    assert [_payload(engine, id) for id in (page, "news")] == ["best", "first"]


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_last_row_of_each_id_wins_while_three_relays_work(database: sa.Engine, engine: shardq.Engine) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(OutboxRelay(engine, database, batch=7))
        for n in range(60):
            _push(database, *(shardq.Task(n, id=f"page-{k}", delay=600, on_conflict="replace") for k in range(5)))
        last = OutboxRelay(engine, database)
        wait_until(lambda: last.waiting().rows == 0, "the outbox is empty", timeout=60)
        last.close()
    assert [_payload(engine, f"page-{k}") for k in range(5)] == [59] * 5


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_on_sqlite_one_relay_works_at_a_time(
    database: sa.Engine, engine: shardq.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other finds nothing to do while one is between its reading of rows and their removal."""
    _push(database, shardq.Task(1, delay=600))
    first, second = OutboxRelay(engine, database), OutboxRelay(engine, database)
    reading, go_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        reading.set()
        assert go_on.wait(60)

    with contextlib.closing(first), contextlib.closing(second):
        assert (first.step(), second.step()) == (1, 0)
        _push(database, shardq.Task(2, delay=600))
        sa.event.listen(database, "after_cursor_execute", hold, once=True)
        at_work = threading.Thread(target=first.step)
        at_work.start()
        assert reading.wait(60)
        assert second.step() == 0
        go_on.set()
        at_work.join(60)
        assert (first.moved, second.moved) == (2, 0)
