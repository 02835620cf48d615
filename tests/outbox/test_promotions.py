"""A replica takes over, or a server comes back without its last second, while relays move rows: a row leaves the table
only when the replicas, and the disk, have what it did.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import pytest
import sqlalchemy as sa

import shardq
from cluster.cluster import Cluster
from cluster.server import Server
from shardq import outbox
from shardq.outbox import OutboxRelay
from shardq.relay.database import open_database, waiting
from tests.support.disk import WatchedServer
from tests.support.handling import handle
from tests.support.waiting import wait_until

ROWS = 600
PAYLOAD = "x" * 100_000
"""More than the buffers of a connection to a replica that stands still."""

REMEMBERED_S = 300.0
"""How long a replica counts that a master had for a moment only, as in a failover."""

ROUNDS = [("sync", 2), ("asyncio", 3)]
"""Thirty of each passed when this was written: some minutes."""

LATER_S = 4.0
"""So that a task is not handled before it can be lost."""


@pytest.fixture
def database(tmp_path: Path) -> sa.Engine:
    database = open_database(f"sqlite:///{tmp_path}/app.db")
    outbox.create(database)
    return database


def _fill(database: sa.Engine, count: int, payload: object = PAYLOAD, *, delay: float = 600) -> list[str]:
    with database.begin() as connection:
        return outbox.push_many(connection, [shardq.Task(payload, delay=delay) for _ in range(count)])


def test_what_a_replica_lacks_stays_in_the_table(
    own_server: Server, replica: Server, name: str, database: sa.Engine
) -> None:
    with shardq.Engine(own_server.url, name=name, shards=4) as engine:
        engine.open()
        ids = _fill(database, ROWS)
        with contextlib.closing(OutboxRelay(engine, database, batch=ROWS)) as relay:
            replica.pause()
            with pytest.raises(shardq.errors.Unavailable, match="replicas"):
                relay.step()
            assert waiting(database, relay.outbox).rows == ROWS
            assert relay.stats().sent > 0
        own_server.kill()
        replica.resume()
        replica.ask("REPLICAOF", "NO", "ONE")
    with shardq.Engine(replica.url, name=name) as engine, OutboxRelay(engine, database) as relay:
        wait_until(lambda: waiting(database, relay.outbox).rows == 0, "all rows are moved", timeout=60)
        assert [id for id in ids if engine.get(id) is None] == []
    database.dispose()


class Committing:
    """Commits rows in a thread, and handles the tasks in another. What was committed is to be handled."""

    def __init__(self, database: sa.Engine, engine: shardq.Engine, *, rows: int, payload: str) -> None:
        self.committed: list[str] = []
        self.handled: set[str] = set()
        self._database, self._engine = database, engine
        self._rows, self._payload = rows, payload
        self._enough = threading.Event()
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._commit, self._handle)]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._enough.set()
        self._ended.set()
        for each in self._threads:
            each.join()

    def _commit(self) -> None:
        while not self._enough.wait(0.02):
            self.committed += _fill(self._database, self._rows, self._payload, delay=LATER_S)

    def stop_committing(self) -> None:
        self._enough.set()
        self._threads[0].join()

    def _handle(self) -> None:
        # an answer that was lost with its server leaves a lease to run out
        handle(self._engine, self.handled, self._ended.is_set, lease=20)


def _whole_run(
    database: sa.Engine, kind: str, url: str, name: str, outages: Iterable[None], *, rows: int, payload: str
) -> None:
    """Rows are committed through all outages, and each is handled."""
    with ExitStack() as stack:
        engine = stack.enter_context(shardq.Engine(url, name=name, shards=6, timeout=10))
        engine.start()
        related: Any = shardq.AsyncEngine(url, name=name) if kind == "asyncio" else engine
        relay = stack.enter_context(OutboxRelay(related, database, batch=100))
        ledger = stack.enter_context(Committing(database, engine, rows=rows, payload=payload))
        wait_until(lambda: ledger.handled, "tasks are handled")
        for _ in outages:
            pass
        ledger.stop_committing()
        wait_until(lambda: waiting(database, relay.outbox).rows == 0, "all rows are moved", timeout=REMEMBERED_S + 60)
        with contextlib.suppress(AssertionError):
            wait_until(lambda: set(ledger.committed) <= ledger.handled, "all are handled", timeout=60)
        missing = set(ledger.committed) - ledger.handled
        assert {id: engine.get(id) for id in missing} == {}, "lost where it is None, else late"
    database.dispose()


def _promotions(cluster: Cluster, count: int) -> Iterator[None]:
    """A replica stands still for a moment, its master dies, and it takes over without what it has missed."""
    for number in range(count):
        master = cluster.masters[number % 3]
        [replica] = cluster.replicas_of(master)
        replica.pause()
        time.sleep(1.0)
        master.kill()
        replica.resume()
        cluster.wait_promoted(master)
        yield
        master.restart()
        cluster.wait_ok()
        wait_until(lambda: all(map(cluster.replicas_of, cluster.masters)), "each has a replica", timeout=60)


def _power_cuts(server: WatchedServer, count: int) -> Iterator[None]:
    draw = random.Random(count)
    for _ in range(count):
        time.sleep(draw.uniform(0.2, 4.0))
        server.lose_power(draw)
        time.sleep(0.3)
        server.start()
        yield


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "count"), ROUNDS)
def test_promotions_lose_no_committed_row(
    own_cluster: Cluster, name: str, database: sa.Engine, kind: str, count: int
) -> None:
    _whole_run(database, kind, own_cluster.url, name, _promotions(own_cluster, count), rows=3, payload=PAYLOAD)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "count"), ROUNDS)
def test_power_cuts_lose_no_committed_row(
    server_binary: Path, name: str, tmp_path: Path, database: sa.Engine, kind: str, count: int
) -> None:
    with WatchedServer(server_binary, tmp_path / "server") as server:
        _whole_run(database, kind, server.url, name, _power_cuts(server, count), rows=20, payload="x")
