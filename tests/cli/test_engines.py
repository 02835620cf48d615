"""engines lists the engines of a server, and removes one that no process serves."""

from __future__ import annotations

import json

import pytest

from cluster.server import Server
from shardq import Engine
from tests.cli.shell import ON_BOTH, Shell
from tests.support.waiting import wait_until


def found(shell: Shell) -> dict[str, dict[str, object]]:
    done = shell.run("engines", "--json")
    assert done.err == ""
    return {each["name"]: each for each in map(json.loads, done.lines)}


@pytest.mark.slow
@ON_BOTH
def test_engines_are_listed_and_one_is_removed(shardq: Shell, url: str, name: str) -> None:
    other = f"{name}x"
    with Engine(url, name=other, shards=1) as engine:
        engine.push("stays", delay=900)
        with Engine(url, name=name, shards=3) as engine:
            for topic in ("", "mail"):
                engine.push("x", topic=topic, delay=900)
            seen = found(shardq)
            assert {"shards": 3, "tasks": 2, "processes": 0}.items() <= seen[name].items()
            assert 0 <= seen[name]["age"] < 900  # type: ignore[operator]
            assert {"shards": 1, "tasks": 1}.items() <= seen[other].items()
            engine.start()
            wait_until(engine.fleet, "its dispatcher is seen")
            done = shardq.run("engines", "--remove", name, "--yes")
            assert (done.code, "has dispatchers or workers that live (1): stop them first" in done.err) == (1, True)
        done = shardq.run("engines", "--remove", name)
        assert (done.code, "no terminal to ask" in done.err) == (2, True)
        asked = shardq.on_terminal("engines", "--remove", name, columns=200, rows=20, answer="n")
        assert f"Remove the engine {name!r} with 2 tasks?" in asked.out
        assert asked.code == 1
        assert name in found(shardq)
        done = shardq.run("engines", "--remove", name, "--yes")
        assert (done.code, done.out) == (0, f"the engine {name!r} is removed\n")
        assert name not in found(shardq)
        assert {"shards": 1, "tasks": 1}.items() <= found(shardq)[other].items()
        done = shardq.run("engines", "--remove", name, "--yes")
        assert (done.code, f"no engine named {name!r} there" in done.err) == (1, True)


def test_nothing_of_a_removed_engine_is_left(shell: Shell, own_server: Server, name: str) -> None:
    with Engine(own_server.url, name=name, shards=2) as engine:
        engine.push("x")
        engine.push("y", delay=900, id="a", dedup=60)
        engine.limit("mail", rate=5)
    own_server.ask("SET", "others", "key")
    assert shell.run("engines", "--url", own_server.url, "--remove", name, "--yes").code == 0
    assert own_server.ask("DBSIZE") == 1


@pytest.mark.parametrize("role", ["operator", "all"])
def test_it_needs_an_administrator(shell: Shell, own_server: Server, name: str, role: str) -> None:
    rules = shell.run("acl", role, "--name", name).out.split()
    own_server.ask("ACL", "SETUSER", "someone", *rules[3:], ">secret")
    done = shell.run("engines", "--url", f"redis://someone:secret@{own_server.address}")
    assert done.code == 1
    assert "scan" in done.err.lower()
