"""cancel, requeue and reschedule of all that match: counted and asked first, page by page, ended between two pages."""

from __future__ import annotations

import re
import signal

import pytest

from cluster.server import Server
from shardq import Engine, Task
from tests.cli.shell import Shell
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, put, state_of

COUNT = 6000
"""Some pages."""


@pytest.fixture
def running(engine: Engine) -> Engine:
    engine.start()
    return engine


def test_cancel(shardq: Shell, engine: Engine) -> None:
    engine.push_many([Task(n, delay=60 if n % 2 else FAR_S, topic=("mail", "sms")[n % 3 == 0]) for n in range(30)])
    done = shardq.run("cancel", "--topic", "mail", "--due", "0..10m", "--dry-run")
    assert (done.code, done.out) == (0, "10 would be cancelled\n")
    assert engine.stats().scheduled == 30
    done = shardq.run("cancel", "--topic", "mail", "--due", "0..10m", "--yes")
    assert (done.code, done.out, done.own_err) == (0, "10 cancelled\n", "")
    done = shardq.run("cancel", "--state", "scheduled", "--yes", "--json")
    assert done.object == {"matched": 20, "cancelled": 20, "others": {}, "whole": True}
    assert engine.stats().scheduled == 0
    assert shardq.run("cancel", "--all", "--yes").out == "0 cancelled\n"


def test_requeue(shardq: Shell, running: Engine) -> None:
    mail = [put(running, "dead", topic="mail") for _ in range(3)]
    other = put(running, "dead")
    scheduled = put(running, "scheduled", topic="mail")
    assert shardq.run("requeue", "--topic", "mail", "--dry-run", "--json").object == {
        "matched": 3,
        "requeued": 0,
        "others": {},
        "whole": True,
        "dry_run": True,
    }
    assert shardq.run("requeue", "--topic", "mail", "--yes").out == "3 requeued\n"
    assert state_of(running, other) == "dead"
    assert {delivery.id for delivery in claim(running.consumer("mail"), 3)} == set(mail)
    assert shardq.run("requeue", "--all", "--yes", "--json").object["requeued"] == 1
    assert running.stats().dead == 0
    assert state_of(running, scheduled) == "scheduled"


def test_reschedule(shardq: Shell, running: Engine) -> None:
    ready, leased = put(running, "ready", topic="a"), put(running, "leased", topic="b")
    far = [*running.push_many([Task(n, delay=FAR_S + n, topic="a") for n in range(5)])]
    assert shardq.run("reschedule", "--topic", "a", "--at", "2040-01-01T00:00:00Z", "--yes").out == "6 rescheduled\n"
    assert {str(task.due) for task in listed(running, state="scheduled")} == {"2040-01-01 00:00:00+00:00"}
    assert shardq.run("reschedule", "--all", "--delay", "0", "--yes").out == "6 rescheduled\n"
    assert {delivery.id for delivery in claim(running.consumer("a"), 6)} == {ready, *far}
    assert state_of(running, leased) == "leased"


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


@pytest.mark.slow
def test_it_asks(shardq: Shell, engine: Engine) -> None:
    engine.push_many([Task(n, delay=60, topic="mail") for n in range(7)])
    for answer, left in (("n", 7), ("y", 0)):
        done = shardq.on_terminal(*("cancel", "--topic", "mail", "--due", "..1h"), columns=200, rows=30, answer=answer)
        question = f"Cancel 7 scheduled tasks of the topic 'mail', due ..3600s, of '{engine.name}' at redis"
        assert question in done.out, done.out
        assert "? [y/N]: " in done.out
        assert ("nothing cancelled" if left else "7 cancelled") in done.out
        assert done.code == (1 if left else 0)
        assert engine.stats().scheduled == left
    done = shardq.on_terminal("cancel", "--topic", "mail", columns=200, rows=30)
    assert "[y/N]" not in done.out
    assert "0 cancelled" in done.out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(shardq: Shell, own_server: Server, name: str, number: signal.Signals) -> None:
    """The page under way is waited for. What it says was cancelled is gone, all else is there."""
    words = ("cancel", "--topic", "mail", "--yes", "--name", name)
    with Engine(own_server.url, name=name, shards=4) as engine:
        engine.push_many([Task(n, delay=FAR_S, topic="mail") for n in range(COUNT)])
        done = shardq.interrupted(number, own_server, *words)
        assert done.code == 128 + number, done
        assert f"ended by {number.name}; repeat it for the rest" in done.err
        cancelled = int(re.findall(r"^([\d,]+) cancelled", done.out)[0].replace(",", ""))
        assert 0 < cancelled < COUNT
        assert engine.stats().scheduled == COUNT - cancelled
        assert shardq.run(*words, "--url", own_server.url).lines == [f"{COUNT - cancelled:,} cancelled"]
        assert engine.stats().scheduled == 0
