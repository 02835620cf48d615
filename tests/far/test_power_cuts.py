"""A server comes back without its last second: no far task is lost, as its row stays until the disk has its task."""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

from shardq import Engine, Outcome, ShardqError, Task
from shardq.features.far import statements as sql
from tests.support.disk import WatchedServer
from tests.support.handling import handle
from tests.support.states import counted
from tests.support.waiting import wait_until

FAR_S = 30 * 86_400.0
TASKS = 20

WHAT_AN_FSYNC_COVERED = 1
"""With this seed, a power cut leaves only what an fsync covered."""

AFTER_S = 5.0
CUTS = 3


@pytest.fixture
def server(server_binary: Path, tmp_path: Path) -> Iterator[WatchedServer]:
    with WatchedServer(server_binary, tmp_path / "server") as server:
        yield server


def rows_of(database: Path) -> int:
    """All of them, those that wait to be confirmed, too."""
    with closing(sqlite3.connect(database)) as connection:
        [(count,)] = connection.execute(f"SELECT count(*) FROM {sql.TABLE}").fetchall()
    return int(count)


@pytest.mark.parametrize("moves", ["a command", "a loader"])
def test_what_was_moved_a_moment_ago(server: WatchedServer, name: str, tmp_path: Path, moves: str) -> None:
    database = tmp_path / "far.db"
    with Engine(server.url, name=name, shards=2, far=str(database)) as engine:
        ids = engine.push_many([Task(n, delay=FAR_S) for n in range(TASKS)])
        wait_until(lambda: server.covered == server.file.stat().st_size, "the engine is on the disk")
        if moves == "a command":
            for id in ids:
                assert engine.reschedule(id, delay=600) is Outcome.MOVED
        else:
            with closing(sqlite3.connect(database, isolation_level=None)) as connection:
                connection.execute(f"UPDATE {sql.TABLE} SET due = :due", {"due": int(1000 * time.time()) + 600_000})
            engine.start()
            wait_until(lambda: counted(engine).scheduled == TASKS, "they are loaded")
        _, kept, written = server.lose_power(random.Random(WHAT_AN_FSYNC_COVERED))
        assert kept < written, "it takes something"
        engine.stop()
    server.start()
    with Engine(server.url, name=name, far=str(database)) as engine:
        engine.start()
        wait_until(lambda: counted(engine).scheduled == TASKS, "none is lost")
        wait_until(lambda: rows_of(database) == 0, "the table is empty")
        assert [id for id in ids if engine.get(id) is None] == []


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("soon")
def test_power_cuts_lose_no_far_task(server: WatchedServer, name: str, tmp_path: Path) -> None:
    """While rows are loaded, and commands move some."""
    draw = random.Random(5)
    pushed, cancelled, handled, ended = list[str](), set[str](), set[str](), threading.Event()
    with Engine(server.url, name=name, shards=4, far=str(tmp_path / "far.db"), ahead=AFTER_S, timeout=10) as engine:
        engine.start()

        def pushes() -> None:
            while not ended.wait(0.02):
                ids = engine.push_many([Task(n, delay=AFTER_S + draw.uniform(1.5, 4)) for n in range(10)])
                pushed.extend(ids)
                cancelled.add(ids[1])  # or handled, if a power cut takes the cancel
                with suppress(ShardqError):
                    engine.reschedule(ids[0], delay=AFTER_S)
                    engine.cancel(ids[1])

        def is_over() -> bool:
            return ended.is_set() and {*pushed} <= handled | cancelled

        handles = partial(handle, engine, handled, is_over, lease=10)
        threads = [threading.Thread(target=each, daemon=True) for each in (pushes, handles)]
        for each in threads:
            each.start()
        for _ in range(CUTS):
            time.sleep(draw.uniform(AFTER_S, AFTER_S + 3))
            server.lose_power(draw)
            server.start()
        ended.set()
        threads[0].join()
        threads[1].join(90)
        missing = {*pushed} - handled - cancelled
        assert len(handled) > 0.8 * len(pushed) > 1000
        assert {id: engine.get(id) for id in missing} == {}, f"of {len(pushed)}: lost where it is None, else late"
