"""A relay tells what it moved, refused and failed to move, and how far it is behind."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa

import shardq
from cluster.server import Server
from shardq import outbox
from shardq.outbox import OutboxRelay
from shardq.relay.database import open_database
from tests.metrics.scraping import got, parsed, total
from tests.support.waiting import wait_until


def _fill(database: sa.Engine, count: int, *, age_s: float = 0.0) -> None:
    with database.begin() as connection:
        outbox.push_many(connection, [shardq.Task(n) for n in range(count)])
        if age_s:
            connection.execute(outbox.table.update().values(created=int((time.time() - age_s) * 1000)))


def test_moved_and_refused_rows_are_counted(database: sa.Engine, url: str, name: str) -> None:
    with shardq.Engine(url, name=name, shards=2) as engine:
        engine.push("first", id="taken", delay=60)
        _fill(database, 50, age_s=90)
        with database.begin() as connection:
            outbox.push(connection, "second", id="taken", on_conflict="reject")
        with contextlib.closing(OutboxRelay(engine, database)) as relay:
            assert relay.step() == 51
            (seen,) = engine.stats().relays
            assert (seen.table, seen.moved, seen.refused, seen.retried, seen.problem) == ("shardq_outbox", 51, 1, 0, "")
            assert 90 <= seen.oldest_s < 90 + 600, "as old as the oldest row was"
            assert relay.step() == 0
            assert relay.stats().oldest_s == 0.0, "it is not behind"
        assert engine.stats().relays == (), "a closed one is not told of"


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_command_serves_probes_and_metrics(tmp_path: Path, url: str, name: str) -> None:
    opened = sa.create_engine(f"sqlite:///{tmp_path}/app.db")
    outbox.create(opened)
    _fill(opened, 5)
    command = [sys.executable, "-m", "shardq", "outbox", "run", "--database", f"sqlite:///{tmp_path}/app.db"]
    command += ["--url", url, "--name", name, "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            place = next(line for line in process.stderr if "probes and metrics" in line).split()[-1]
            wait_until(lambda: total(parsed(got(f"{place}/metrics")[1]), "shardq_outbox_moved_total") == 5, "all moved")
            assert (got(f"{place}/livez")[0], got(f"{place}/readyz")[0]) == (200, 200)
            with opened.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE shardq_outbox RENAME TO away")
            wait_until(lambda: "no such table" in got(f"{place}/readyz")[1], "it says what is wrong")
            assert (got(f"{place}/livez")[0], got(f"{place}/readyz")[0]) == (200, 503)
            assert total(parsed(got(f"{place}/metrics")[1]), "shardq_outbox_stuck", table="shardq_outbox") == 1
        finally:
            process.terminate()
    assert process.returncode == 0
    opened.dispose()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_an_asyncio_engine_tells_of_its_relays(database: sa.Engine, url: str, name: str) -> None:
    async def main() -> None:
        async with shardq.AsyncEngine(url, name=name, shards=2) as engine:
            with OutboxRelay(engine, database) as relay:
                assert [seen.table for seen in (await engine.stats()).relays] == ["shardq_outbox"]
            assert (await engine.stats()).relays == ()
            assert relay.stats().problem == ""

    asyncio.run(main())


def test_rows_that_can_not_be_pushed_are_counted(database: sa.Engine, own_server: Server, name: str) -> None:
    with (
        shardq.Engine(own_server.url, name=name, shards=2, timeout=0.5) as engine,
        contextlib.closing(OutboxRelay(engine, database)) as relay,
    ):
        _fill(database, 1)
        assert relay.step() == 1
        _fill(database, 50, age_s=90)
        own_server.kill()
        with pytest.raises(shardq.ServerFault):
            relay.step()
        assert (relay.stats().moved, relay.stats().retried) == (1, 50)
        assert relay.stats().oldest_s >= 90
        own_server.start()
        wait_until(lambda: relay.step() == 0 and relay.moved == 51, "they are moved")
        assert relay.stats().retried >= 50


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_relay_that_fails_is_a_problem_of_its_engine(tmp_path: Path, url: str, name: str) -> None:
    database = open_database(f"sqlite:///{tmp_path}/app.db")  # without the table

    with shardq.Engine(url, name=name, shards=2) as engine, OutboxRelay(engine, database):

        def told() -> list[str]:
            return [reason for reason in engine.health().reasons if reason.startswith("an outbox relay")]

        (reason,) = wait_until(told, "the relay fails")
        assert reason.startswith("an outbox relay of this process can't move rows of shardq_outbox: ")
        assert [relay.problem in reason for relay in engine.stats().relays] == [True]
        outbox.create(database)
        wait_until(lambda: not told(), "the relay works")
    database.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_command_prints_its_counters(database: sa.Engine, database_url: str, url: str, name: str) -> None:
    def run(*words: str) -> str:
        command = [sys.executable, "-m", "shardq", "outbox", "run", "--once", "--url", url, "--name", name]
        command += ["--database", database_url, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout

    _fill(database, 1500)
    assert run() == "moved 1,500\n"
    assert json.loads(run("--json")) == {
        "table": "shardq_outbox", "moved": 0, "sent": 0, "refused": 0, "retried": 0, "failed": 0, "oldest_s": 0.0,
        "problem": None, "unconfirmed": None, "missing": None,
    }  # fmt: skip
