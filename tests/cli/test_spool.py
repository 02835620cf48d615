"""`shardq spool`: what an operator sees of a spool's file, without the engine that has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardq import Engine, Task
from shardq.spool.file import SpoolFile
from tests.cli.shell import Shell
from tests.support.states import FAR_S, state_of

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


def test_a_file_is_replayed(shardq: Shell, engine: Engine, path: str, ids: list[str]) -> None:
    engine.push("first", id="taken", delay=FAR_S)
    told = shardq.run("spool", "replay", path)
    assert (told.code, told.out) == (0, "replayed 5, refused 1, 0 left\n")
    assert all(state_of(engine, id) == "scheduled" for id in ids)

    told = shardq.run("stats", "--spool", path)
    assert told.code == 1
    assert "5 replayed, 1 refused" in told.out
    assert "were refused: `shardq spool failed" in told.err
    assert shardq.run("stats", "--spool", path, "--json").object["spool"]["failed"] == 1

    listed = shardq.run("spool", "failed", path)
    assert listed.code == 0
    assert "push taken  Conflict: id 'taken' is already scheduled" in listed.out
    [seen] = shardq.run("spool", "failed", path, "--json").objects
    assert (seen["id"], seen["kind"]) == ("taken", "push")

    assert engine.cancel("taken")
    assert shardq.run("spool", "failed", path, "--retry").out == "put back 1 command\n"
    assert shardq.run("spool", "replay", path, "--json").object["replayed"] == 1
    found = engine.get("taken")
    assert found is not None
    assert found.payload == "spooled"
    assert shardq.run("spool", "status", path).code == 0
    assert shardq.run("stats", "--spool", path).code == 0


def test_refused_commands_are_dropped(shell: Shell, path: str, ids: list[str]) -> None:
    file = SpoolFile(Path(path))
    file.finish([], [(1, "no")])
    file.close()
    assert shell.run("spool", "failed", path, "--drop").out == "dropped 1 command\n"
    assert shell.run("spool", "failed", path, "--drop", "--json").object == {"dropped": 0}
    assert shell.run("spool", "status", path, "--json").object["waiting"] == len(ids) - 1


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
    assert shell.run("spool", "status", path, "--json").object["waiting"] == len(ids)
