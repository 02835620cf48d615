"""cancel --tag: removes the tasks of a tag, tells what runs on, and ends in good order when it is interrupted."""

from __future__ import annotations

import re
import signal

import pytest

from cluster.server import Server
from shardq import Engine, Task
from tests.cli.shell import Shell
from tests.support.states import FAR_S, put

COUNT = 3000
"""Many pages."""


def test_tasks_of_a_tag(shardq: Shell, engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S, tags=[f"user-{n % 2}"]) for n in range(10)])
    assert shardq.run("cancel", "--tag", "user-1", "--dry-run").out == "5 would be cancelled\n"
    done = shardq.run("cancel", "--tag", "user-1", "--yes")
    assert (done.code, done.lines, done.own_err) == (0, ["5 cancelled"], "")
    assert shardq.run("cancel", "--tag", "user-1", "--yes", "--json").object == {
        "matched": 0,
        "cancelled": 0,
        "others": {},
        "running": [],
        "looked_at": 5,
        "whole": True,
    }
    assert engine.stats().scheduled == 5


def test_one_that_runs(shardq: Shell, engine: Engine) -> None:
    engine.start()
    id = put(engine, "leased", tags=["user-1"])
    engine.push("x", delay=FAR_S, tags=["user-1"])
    done = shardq.run("cancel", "--tag", "user-1", "--yes")
    assert (done.code, done.lines) == (1, ["1 cancelled, 1 running"])
    assert done.own_err == f"1 task is running: {id}\n"
    again = shardq.run("cancel", "--tag", "user-1", "--yes", "--json")
    assert (again.code, again.object["running"]) == (1, [id])


def test_what_is_no_tag(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("cancel", "--tag", "a/b", "--yes")
    assert (done.code, done.out) == (2, "")
    assert "the tag 'a/b' has '/' at position 1" in done.err
    assert shardq.run("cancel", "--tag", "a", "some-id", "--yes").code == 2
    assert engine.stats().scheduled == 0


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(shardq: Shell, own_server: Server, name: str, number: signal.Signals) -> None:
    """The page under way is waited for. What it says was cancelled is gone, all else is there, and a second call
    cancels the rest.
    """
    words = ("cancel", "--tag", "red", "--yes", "--name", name)
    with Engine(own_server.url, name=name, shards=4) as engine:
        engine.push_many([Task(n, delay=FAR_S, tags=["red"]) for n in range(COUNT)])
        done = shardq.interrupted(number, own_server, *words)
        assert done.code == 128 + number, done
        assert f"ended by {number.name}; repeat it for the rest" in done.err
        cancelled = int(re.findall(r"^([\d,]+) cancelled", done.out)[0].replace(",", ""))
        assert 0 < cancelled < COUNT
        assert engine.stats().scheduled == COUNT - cancelled
        assert shardq.run(*words, "--url", own_server.url).lines == [f"{COUNT - cancelled:,} cancelled"]
        assert engine.stats().scheduled == 0


def test_on_a_terminal(shardq: Shell, engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S, tags=["red"]) for n in range(100)])
    done = shardq.on_terminal("cancel", "--tag", "red", "--yes", columns=80, rows=24)
    assert done.code == 0
    assert [line for line in done.out.splitlines() if line][-1] == "100 cancelled"
