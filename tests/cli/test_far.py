"""`shardq far`, and ``--far`` of the other commands."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardq import Engine, Task
from shardq.features.far import far, rows
from tests.cli.conftest import SHARDS
from tests.cli.shell import Shell
from tests.support.findings import red
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S

FAR_S = 30 * 86_400.0


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "far.db")


@pytest.fixture
def engine(url: str, name: str, database: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS, far=database) as engine:
        engine.push_many([Task(n, delay=FAR_S + n, topic="mail") for n in range(3)])
        yield engine


def test_status(shardq: Shell, engine: Engine, database: str) -> None:
    told = shardq.run("far", "status", "--far", database)
    assert told.code == 0
    assert "3 tasks, the first due at" in told.out
    seen = shardq.run("far", "status", "--far", database, "--json").object
    assert (seen["tasks"], seen["database"], seen["problems"]) == (3, database, [])


def test_another_ahead(shardq: Shell, engine: Engine, database: str) -> None:
    told = shardq.run("far", "ahead", "2h", "--far", database)
    assert told.code == 0, told
    assert "loaded when due within 7,200 s (takes effect in 8," in told.out
    assert "change it again in" in shardq.run("far", "ahead", "90m", "--far", database).err
    assert "give 60 seconds or more" in shardq.run("far", "ahead", "5", "--far", database).err


def test_without_the_database(shardq: Shell, engine: Engine) -> None:
    told = shardq.run("far", "status")
    assert told.code == 2
    assert "give the database as --far, or as $SHARDQ_FAR" in told.err


def test_commands_on_far_tasks(shardq: Shell, engine: Engine, database: str) -> None:
    id = engine.push("far", delay=FAR_S, topic="mail")
    assert "opened without it here; give far=" in shardq.run("get", id).err
    assert "payload     " in shardq.run("get", id, "--far", database).out
    assert id in shardq.run("list", "--topic", "mail", "--far", database).out
    assert shardq.run("reschedule", id, "--delay", "60d", "--far", database).code == 0
    assert shardq.run("cancel", id, "--far", database).code == 0
    assert engine.get(id) is None
    assert "far store" in shardq.run("stats", "--far", database).out


@pytest.mark.slow
def test_load_and_drop(shardq: Shell, url: str, name: str, database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MARGIN_S", 1.0)
    monkeypatch.setattr(far, "LEAST_AHEAD_S", 0.1)
    with Engine(url, name=name, shards=SHARDS, far=database, ahead=0.5) as engine:
        engine.push_many([Task(n, delay=2) for n in range(5)])
        engine.push("far", delay=FAR_S)
        time.sleep(2)
        assert shardq.run("far", "load", "--far", database).out.strip() == "5 tasks loaded"
        assert engine.stats().scheduled == 5
        for year, dropped in ((2020, "no tasks"), (2199, "1 task")):
            words = ("--due-before", f"{year}-01-01T00:00:00Z", "--far", database)
            assert shardq.run("far", "drop", *words).out == f"{dropped} dropped\n"
        told = shardq.run("far", "status", "--far", database)
        assert "no tasks" in told.out


@pytest.mark.slow
def test_run_loads(shardq: Shell, engine: Engine, database: str) -> None:
    process = shardq.start("run", "--far", database, "--quiet")
    wait_until(lambda: any(member.loads for member in engine.fleet()), "it loads", timeout=SOON_S)
    assert "far" not in red(engine.health())
    process.terminate()
    assert process.wait(SOON_S) == 0
