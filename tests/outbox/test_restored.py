"""The database goes back to a backup, or Redis comes back empty: what the page on waiting commands says of it."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

import shardq
from cluster.server import Server
from shardq import outbox
from shardq.core.layout.keys import patterns
from shardq.core.model.checks import now_ms
from shardq.outbox import OutboxRelay
from shardq.relay.database import open_database, waiting

COUNT = 30


def _moved(engine: shardq.Engine, database: sa.Engine) -> None:
    with closing(OutboxRelay(engine, database, keep=True)) as relay:
        while waiting(database, relay.outbox).rows:
            relay.step()


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_database_that_goes_back(database: sa.Engine, engine: shardq.Engine, tmp_path: Path) -> None:
    """Rows that were moved are there again. Redis knows them, also those that were handled or cancelled meanwhile."""
    with database.begin() as connection:
        done = outbox.push_many(connection, [shardq.Task(n) for n in range(COUNT)])
        far = outbox.push_many(connection, [shardq.Task(n, delay=600) for n in range(COUNT)])
        outbox.push(connection, "cancelled", id="cancelled", delay=600)
    database.dispose()
    shutil.copy(tmp_path / "app.db", tmp_path / "backup")
    _moved(engine, database)
    engine.cancel("cancelled")
    engine.start()
    consumer, met = engine.consumer(), list[str]()
    while len(met) < COUNT:
        deliveries = consumer.claim(COUNT, wait=10)
        met += [delivery.id for delivery in deliveries]
        consumer.ack(deliveries)
    database.dispose()
    shutil.copy(tmp_path / "backup", tmp_path / "app.db")
    again = open_database(str(database.url))
    assert waiting(again, outbox.default_outbox).rows == 2 * COUNT + 1
    _moved(engine, again)
    again.dispose()
    assert sorted(met) == sorted(done)
    assert consumer.claim(COUNT, wait=0) == []
    assert sorted(task.id for task in engine.tasks(limit=1000)) == sorted(far)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_server_that_is_emptied(database: sa.Engine, single: Server, name: str) -> None:
    """Rows that were kept are moved again, by the statement of the page."""
    with shardq.Engine(single.url, name=name, shards=2) as engine:
        with database.begin() as connection:
            ids = outbox.push_many(connection, [shardq.Task(n, delay=600) for n in range(COUNT)])
        before = now_ms()
        _moved(engine, database)
        assert engine.stats().scheduled == COUNT
    with closing(single.client()) as client:
        client.delete(*(key for pattern in patterns(name) for key in client.scan_iter(pattern, 1000)))
    with database.begin() as connection:
        connection.exec_driver_sql(f"UPDATE shardq_outbox SET moved = NULL WHERE moved >= {before}")
    with shardq.Engine(single.url, name=name, shards=2) as engine:
        _moved(engine, database)
        assert sorted(task.id for task in engine.tasks(limit=1000)) == sorted(ids)
