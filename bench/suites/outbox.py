"""The transactional outbox: rows that a relay moves from a database to the engine, and how late a lone one is.

Rows are committed before the clock starts; one relay works in this process, from SQLite and from PostgreSQL.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sa

from bench.figures import Figure, median, rate
from bench.loads import FAR_S, PAYLOAD
from bench.stand import Stand
from bench.suite import Suite
from cluster.postgres import Postgres
from shardq import Task, outbox
from shardq.outbox.database import open_database

ROWS_A_COMMIT = 5_000


def _measure(stand: Stand) -> Iterator[Figure]:
    count = stand.pick(2_000, 100_000)
    with tempfile.TemporaryDirectory() as folder, Postgres() as postgres:
        for name, url in (("SQLite", f"sqlite:///{Path(folder)}/app.db"), ("PostgreSQL", postgres.url())):
            with _outbox(url) as database, stand.engine() as engine:
                stand.say(f"outbox on {name}, {count:,} rows")
                for _ in range(count // ROWS_A_COMMIT or 1):
                    with database.begin() as connection:
                        outbox.push_many(connection, [Task(PAYLOAD, delay=FAR_S)] * min(count, ROWS_A_COMMIT))
                relay = outbox.OutboxRelay(engine, database)
                with closing(relay), stand.metering() as spent:
                    while relay.step():
                        pass
                yield rate(f"outbox relay, {name}", relay.moved, spent, reference="aim: ≥ 5,000")
                with outbox.OutboxRelay(engine, database) as relay:
                    _until_running(stand, relay)
                    waits = [_one(stand, relay, database) for _ in range(stand.pick(5, 50))]
                yield Figure(f"outbox, {name}: commit → engine, median", median(waits) * 1000, "ms")


def _until_running(stand: Stand, relay: outbox.OutboxRelay) -> None:
    stand.until(lambda: "running" in repr(relay), "the relay runs")


def _one(stand: Stand, relay: outbox.OutboxRelay, database: sa.Engine) -> float:
    """The seconds from a row's commit until the engine has it."""
    before = relay.moved
    with database.begin() as connection:
        outbox.push(connection, PAYLOAD, delay=FAR_S)
    begun = time.perf_counter()
    stand.until(lambda: relay.moved > before, "the row is moved", look_s=0.0005)
    return time.perf_counter() - begun


SUITE = Suite("outbox", "rows of the transactional outbox that a relay moves in a second", _measure)


@contextmanager
def _outbox(url: str) -> Iterator[sa.Engine]:
    database = open_database(url)
    try:
        outbox.create(database)
        yield database
    finally:
        database.dispose()
