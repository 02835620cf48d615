"""`shardq spool`: what an operator sees of a spool's file, without the engine that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardq import Engine, Task
from shardq.relay.file import SpoolFile
from tests.cli.shell import Shell
from tests.support.states import FAR_S, state_of

pytestmark = pytest.mark.slow

NOBODY = "redis://127.0.0.1:1"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "orders.spool")


@pytest.fixture
def ids(path: str, name: str) -> list[str]:
    """Pushes of an engine that could not reach its server; one of them will be refused."""
    with Engine(NOBODY, name=name, shards=4, spool=path, timeout=0.1, connect_timeout=0.1) as engine:
        taken = engine.push("spooled", id="taken", on_conflict="reject", delay=FAR_S)
        return [taken, *engine.push_many([Task(n, delay=FAR_S) for n in range(5)])]


def test_a_file_is_looked_at_without_a_server(shell: Shell, path: str, ids: list[str], name: str) -> None:
    told = shell.run("spool", "status", path)
    assert told.code == 1
    assert told.out.startswith(f"{len(ids)} commands waiting, the oldest for ")
    assert f"of the engine {name}" in told.out
    seen = shell.run("spool", "status", path, "--json").object
    assert (seen["waiting"], seen["failed"], seen["engine"]) == (len(ids), 0, name)


@pytest.mark.promise
def test_a_file_is_replayed(shardq: Shell, engine: Engine, path: str, ids: list[str]) -> None:
    engine.push("first", id="taken", delay=FAR_S)
    told = shardq.run("spool", "replay", path)
    assert (told.code, told.out) == (0, "replayed 5, refused 1, 0 left\n")
    assert all(state_of(engine, id) == "scheduled" for id in ids)


@pytest.fixture
def refused(path: str, ids: list[str]) -> str:
    """The same file after a replay that refused one."""
    file = SpoolFile(Path(path))
    file.finish([2, 3, 4, 5, 6], [(1, "Conflict: id 'taken' is already scheduled")])
    file.close()
    return path


def test_stats_tell_what_was_refused(shardq: Shell, engine: Engine, refused: str) -> None:
    engine.push("first", delay=FAR_S)
    told = shardq.run("stats", "--spool", refused)
    assert told.code == 1
    assert "5 replayed, 1 refused" in told.out
    assert "were refused: `shardq spool failed" in told.out
    assert shardq.run("stats", "--spool", refused, "--json").object["spool"]["failed"] == 1


def test_what_was_refused_is_listed(shell: Shell, refused: str) -> None:
    listed = shell.run("spool", "failed", refused)
    assert listed.code == 0
    assert "push taken  Conflict: id 'taken' is already scheduled" in listed.out
    [seen] = shell.run("spool", "failed", refused, "--json").objects
    assert (seen["id"], seen["kind"]) == ("taken", "push")


def test_what_was_refused_is_replayed_again(shardq: Shell, engine: Engine, refused: str) -> None:
    assert shardq.run("spool", "failed", refused, "--retry").out == "put back 1 command\n"
    assert shardq.run("spool", "replay", refused, "--json").object["replayed"] == 1
    found = engine.get("taken")
    assert found is not None
    assert found.payload == "spooled"


def test_refused_commands_are_dropped(shell: Shell, refused: str) -> None:
    assert shell.run("spool", "failed", refused, "--drop").out == "dropped 1 command\n"
    assert shell.run("spool", "status", refused).code == 0


def test_mistakes_are_told(shell: Shell, path: str, ids: list[str], tmp_path: Path) -> None:
    missing = shell.run("spool", "status", str(tmp_path / "missing"))
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    assert "there is no spool at" in missing.err
    away = shell.run("spool", "replay", path, "--url", NOBODY)
    assert away.code == 1
    assert "Connection refused" in away.err
    embedded = shell.run("spool", "replay", path)
    assert embedded.code == 2
    assert "give the server as --url, or as $SHARDQ_URL" in embedded.err
    both = shell.run("spool", "failed", path, "--retry", "--drop")
    assert both.code == 2
