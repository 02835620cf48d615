"""health says by its exit code if all is well, if not, or if that can't be told."""

from __future__ import annotations

import time

import pytest

from cluster.ports import HOST, free_port
from cluster.server import Server
from shardq import Engine
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.engine.health import MAX_LATE_S
from tests.cli.shell import ON_BOTH, Shell
from tests.support.waiting import wait_until


@ON_BOTH
def test_well_and_not_well(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("health")
    assert (done.code, done.err) == (1, "")
    assert done.out == f"not ok: {NO_DISPATCHER}\n"
    told = shardq.run("health", "--json")
    verdict = {"ok": False, "severity": "engine", "reasons": [done.lines[0][8:]], "warnings": []}
    (finding,) = (seen := told.object).pop("findings")
    assert (told.code, seen) == (1, verdict)
    assert {"name": "no_dispatcher", "severity": "red", "about": "", "since": None}.items() <= finding.items()
    assert f"{finding['text']}: {finding['advice']}" == NO_DISPATCHER
    engine.push("x", at=time.time() - 2 * MAX_LATE_S)
    assert [line[:7] for line in shardq.run("health").lines] == ["not ok:"] * 2
    assert len(shardq.run("health", "--max-late", "1h").lines) == 1
    engine.start()
    wait_until(lambda: shardq.run("health").code == 0, "somebody dispatches")
    done = shardq.run("health")
    assert (done.code, done.out, done.err) == (0, "ok\n", "")
    well = {"ok": True, "severity": "ok", "reasons": [], "warnings": [], "findings": []}
    assert shardq.run("health", "--json").object == well
    # several commands have looked by now: all of them know how old it is
    wait_until(lambda: shardq.run("health", "--max-ready-age", "0.1s").code == 1, "nobody takes what is ready")
    assert (
        shardq.run("health", "--max-ready-age", "0.1s").lines[0].startswith("not ok: topic (default): the oldest of 1 ")
    )


def test_what_can_not_be_told(shell: Shell, own_server: Server, name: str) -> None:
    own_server.ask("CONFIG", "SET", "requirepass", "secret9")
    port = free_port()
    commands = {
        "could not connect": ["--url", f"redis://{HOST}:{port}"],
        "AUTH": ["--url", own_server.url],
        f"there is no engine named '{name}'": ["--url", f"redis://:secret9@{own_server.address}", "--name", name],
    }
    for why, words in commands.items():
        done = shell.run("health", *words)
        assert (done.code, done.err) == (2, ""), done
        (line,) = done.lines
        assert line.startswith("can't tell: "), line
        assert why in line or why == "AUTH", line
        assert "secret9" not in line
        told = shell.run("health", "--json", *words)
        assert (told.code, told.object["ok"]) == (2, None)
        assert told.object["reasons"][0].startswith("it can't be told: ")


def test_a_server_that_hangs(shell: Shell, own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=2):
        pass
    own_server.pause()
    try:
        done = shell.run("health", "--url", own_server.url, "--name", name, "--timeout", "1s")
    finally:
        own_server.resume()
    assert (done.code, done.err) == (2, "")
    assert done.out.startswith("can't tell: no verdict within 1 s")


@pytest.mark.parametrize(
    "words", [["--timeout", "0"], ["--timeout", "2h"], ["--max-late", "soon"], ["--max-late", "0"]]
)
def test_what_is_not_understood(shardq: Shell, engine: Engine, words: list[str]) -> None:
    done = shardq.run("health", *words)
    assert (done.code, done.out) == (2, "")
    assert words[0] in done.err
