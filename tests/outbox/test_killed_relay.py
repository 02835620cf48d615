"""A relay that is killed between its push and the removal of its rows: their tasks run once, whoever made their ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
import sqlalchemy as sa

import shardq
from shardq import outbox
from shardq.core.model.checks import OnConflict
from shardq.outbox import OutboxRelay
from tests.support.waiting import wait_until

TASKS = 200
RULES: tuple[OnConflict, ...] = ("keep", "reject", "replace")


@contextmanager
def _none_can_be_removed(database: sa.Engine) -> Iterator[None]:
    """Rows can be read and claimed meanwhile."""
    made, undone = {
        "sqlite": (
            ["CREATE TRIGGER stays BEFORE DELETE ON shardq_outbox BEGIN SELECT RAISE(ABORT, 'not now'); END"],
            "DROP TRIGGER stays",
        ),
        "postgresql": (
            [
                "CREATE FUNCTION stays() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$",
                "CREATE TRIGGER stays BEFORE DELETE ON shardq_outbox EXECUTE FUNCTION stays()",
            ],
            "DROP FUNCTION stays CASCADE",
        ),
    }[database.dialect.name]
    with database.begin() as connection:
        for statement in made:
            connection.exec_driver_sql(statement)
    yield
    with database.begin() as connection:
        connection.exec_driver_sql(undone)


@contextmanager
def _handling(engine: shardq.Engine) -> Iterator[Counter[str]]:
    """Handles all tasks in a thread, and counts how often each was met."""
    met, stop, consumer = Counter[str](), threading.Event(), engine.consumer()

    def handle() -> None:
        while not stop.is_set():
            if deliveries := consumer.claim(500, wait=0.05):
                met.update(delivery.id for delivery in deliveries)
                consumer.ack(deliveries)

    handler = threading.Thread(target=handle)
    handler.start()
    try:
        yield met
    finally:
        stop.set()
        handler.join()


def _fill(database: sa.Engine, ids: str) -> list[str]:
    tasks = [
        shardq.Task(n)
        if ids == "generated"
        # a dedup window may be over when the next relay comes
        else shardq.Task(n, id=f"order-{n}", on_conflict=RULES[n % 3], dedup=0.001 if n % 2 else None)
        for n in range(TASKS)
    ]
    with database.begin() as connection:
        return outbox.push_many(connection, tasks)


@pytest.mark.slow
@pytest.mark.parametrize(("ids", "resized"), [("generated", False), ("own", True)])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_a_killed_relay_has_pushed_runs_once(
    database_url: str, database: sa.Engine, url: str, name: str, ids: str, resized: bool
) -> None:
    command = [sys.executable, "-m", "shardq", "outbox", "run"]
    command += ["--database", database_url, "--url", url, "--name", name, "--keep", "0"]
    outbox.create(database, engine=name)
    with shardq.Engine(url, name=name, shards=4) as engine:
        engine.start()
        pushed = _fill(database, ids)
        with _handling(engine) as met:
            with _none_can_be_removed(database):
                relay = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                try:
                    wait_until(lambda: met.total() >= TASKS, "all were handled", timeout=60)
                finally:
                    os.kill(relay.pid, signal.SIGKILL)
                    relay.wait()
            if resized:
                engine.resize(7).wait(timeout=60)
            with closing(OutboxRelay(engine, database)) as again:
                wait_until(lambda: again.moved + again.step() >= TASKS, "the rows are moved", timeout=60)
            wait_until(lambda: _still(engine) == 0, "what was pushed again is handled")
        assert met == Counter(pushed)
        if ids == "own":  # and is free: the window is the relay's alone
            assert engine.push("another", id="order-0").outcome == "pushed"


def _still(engine: shardq.Engine) -> int:
    stats = engine.stats()
    return stats.scheduled + stats.ready + stats.leased
