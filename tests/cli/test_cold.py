"""`shardq cold`, and ``--cold`` of the other commands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardq import Engine, Task
from shardq.features.cold import cold, rows
from tests.cli.conftest import SHARDS
from tests.cli.shell import Shell
from tests.support.findings import red
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S

FAR_S = 30 * 86_400.0


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "cold.db")


@pytest.fixture
def engine(url: str, name: str, database: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS, cold=database) as engine:
        engine.push_many([Task(n, delay=FAR_S + n, topic="mail") for n in range(3)])
        yield engine


def test_status(shardq: Shell, engine: Engine, database: str) -> None:
    told = shardq.run("cold", "status", "--cold", database)
    assert told.code == 0
    assert "3 tasks, the first due in the hour from" in told.out
    seen = shardq.run("cold", "status", "--cold", database, "--json").object
    assert (seen["tasks"], seen["database"], seen["problems"]) == (3, database, [])


def test_status_names_the_topics(shardq: Shell, url: str, name: str, database: str) -> None:
    """Those of the engine, which another process has told it."""
    with Engine(url, name=name, shards=SHARDS, cold=database, cold_topics=["sms", "mail"]) as engine:
        engine.push("x", id="a", topic="mail", delay=FAR_S)
    told = shardq.run("cold", "status", "--cold", database)
    assert "1 task, " in told.out
    assert told.out.rstrip().endswith("also ids of your own in 'mail', 'sms'")
    assert shardq.run("cold", "status", "--cold", database, "--json").object["topics"] == ["mail", "sms"]


def test_without_the_database(shardq: Shell, engine: Engine) -> None:
    told = shardq.run("cold", "status")
    assert told.code == 2
    assert "give the database as --cold, or as $SHARDQ_COLD" in told.err


def test_commands_on_far_tasks(shardq: Shell, engine: Engine, database: str) -> None:
    id = engine.push("far", delay=FAR_S, topic="mail")
    assert "opened without it: give cold=" in shardq.run("get", id).err
    assert "payload     " in shardq.run("get", id, "--cold", database).out
    assert id in shardq.run("list", "--topic", "mail", "--cold", database).out
    assert shardq.run("reschedule", id, "--delay", "60d", "--cold", database).code == 0
    assert shardq.run("cancel", id, "--cold", database).code == 0
    assert engine.get(id) is None
    assert "cold store" in shardq.run("stats", "--cold", database).out


@pytest.mark.slow
def test_load_and_drop(shardq: Shell, url: str, name: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MARGIN_S", 1.0)
    monkeypatch.setattr(cold, "LEAST_AFTER_S", 0.1)
    with Engine(url, name=name, shards=SHARDS, cold=database, cold_after=0.5) as engine:
        engine.push_many([Task(n, delay=2) for n in range(5)])
        engine.push("far", delay=FAR_S)
        time.sleep(2)
        assert shardq.run("cold", "load", "--cold", database).out.strip() == "5 tasks loaded"
        assert engine.stats().scheduled == 5
        for year, dropped in ((2020, "no tasks"), (2199, "1 task")):
            words = ("--due-before", f"{year}-01-01T00:00:00Z", "--cold", database)
            assert shardq.run("cold", "drop", *words).out == f"{dropped} dropped\n"
        told = shardq.run("cold", "status", "--cold", database)
        assert "no tasks" in told.out


@pytest.mark.slow
def test_run_loads(shardq: Shell, engine: Engine, database: str) -> None:
    process = shardq.start("run", "--cold", database, "--quiet")
    wait_until(lambda: any(member.loads for member in engine.fleet()), "it loads", timeout=SOON_S)
    assert "cold" not in red(engine.health())
    process.terminate()
    assert process.wait(SOON_S) == 0
