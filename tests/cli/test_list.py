"""list: which tasks they show, and that nothing in a task steers the terminal."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from bench.consuming import working
from shardq import Engine, Task
from tests.cli.shell import Shell
from tests.support.states import STATES, claim, put, state_of
from tests.support.waiting import wait_until

FAR = 1_900_000_000
"""March 2030."""


@pytest.fixture
def running(engine: Engine) -> Engine:
    engine.start()
    return engine


def bury(engine: Engine, count: int, *, topic: str = "", reason: str = "of no use") -> list[str]:
    """So many dead tasks, on an engine with pollers."""
    ids: list[str] = [*engine.push_many([Task({"n": n}, topic=topic) for n in range(count)])]
    consumer = engine.consumer(topic)
    consumer.bury(claim(consumer, count), reason)
    return ids


def holder_of(engine: Engine, id: str) -> str:
    """The holder of a leased task."""
    task = engine.get(id)
    assert task is not None
    assert task.holder is not None
    return task.holder


def test_nothing(shardq: Shell, engine: Engine) -> None:
    for words in (["list"], ["list", "--all"], ["list", "--next"]):
        assert shardq.run(*words).out == "none\n"
        done = shardq.run(*words, "--json")
        assert (done.code, done.out) == (0, "")


def test_every_state_in_turn(shardq: Shell, running: Engine) -> None:
    ids = {state: put(running, state, topic=state) for state in STATES}
    head, _, *rows = shardq.run("list").lines
    assert head.split() == ["id", "state", "when", "(UTC)", "attempts", "reason,", "or", "held", "by"]
    assert [row.split()[:2] for row in rows] == [[ids[state], state] for state in STATES]
    assert [task["id"] for task in shardq.run("list", "--json").objects] == [ids[state] for state in STATES]
    for state in STATES:
        (task,) = shardq.run("list", "--state", state, "--json").objects
        assert (task["id"], task["state"], task["payload"]) == (ids[state], state, "first")
        assert [task["id"] for task in shardq.run("list", "--topic", state, "--json").objects] == [ids[state]]
    (task,) = shardq.run("list", "--holder", holder_of(running, ids["leased"]), "--json").objects
    assert task["id"] == ids["leased"]
    assert shardq.run("list", "--holder", "nobody").out == "none\n"


def test_what_waits_for_a_retry(shardq: Shell, running: Engine) -> None:
    running.push("never", delay=3600, topic="mail")
    running.push_many([Task(n, topic="mail") for n in range(3)])
    consumer = running.consumer("mail")
    consumer.retry(claim(consumer, 3), delay=3600, reason="Traceback\n  File x\nKeyError: 'a'")
    head, _, *rows = shardq.run("list", "--failed").lines
    assert head.split() == ["id", "due", "(UTC)", "attempts", "reason"]
    assert [row.strip().split(maxsplit=4)[3:] for row in rows] == [["1", "KeyError: 'a'"]] * 3
    assert {task["reason"][:9] for task in shardq.run("list", "--failed", "--json").objects} == {"Traceback"}
    assert "reason" not in shardq.run("list", "--state", "ready").out
    for wrong in (["--state", "dead"], ["--holder", "me"], ["--newest"]):
        assert shardq.run("list", "--failed", *wrong).code == 2
    assert shardq.run("stats", "--json").object["topics"]["mail"]["retrying"] == 3
    done = shardq.run("reschedule", "--failed", "--delay", "0", "--yes")
    assert (done.code, done.out) == (0, "3 rescheduled\n")


def test_a_payload_that_json_can_not_say(shardq: Shell, url: str, name: str) -> None:
    with Engine(url, name=name, shards=2, codec="msgpack") as engine:
        id = engine.push({(1, 2): "x"}, delay=3600)
    for words in (["list"], ["list", "--next"], ["get", id]):
        (task,) = shardq.run(*words, "--json").objects
        assert (task["codec"], task["payload_base64"]) == ("msgpack", "gZIBAqF4"), words
        done = shardq.run(*words)
        assert done.code == 0
        assert ("(1, 2): 'x'" in done.out) == (words != ["list"]), "a list shows no payloads"


def test_dead_ones(shardq: Shell, running: Engine) -> None:
    (mail,) = bury(
        running, 1, topic="mail", reason="Traceback:\n  here\nValueError: [bold]no[/bold] \x1b[31m address\n"
    )
    (other,) = bury(running, 1)
    done = shardq.run("list", "--state", "dead")
    assert (done.code, done.err) == (0, "")
    head, _, *rows = done.lines
    assert head.split() == ["id", "died", "(UTC)", "attempts", "reason"]
    assert [row.split()[0] for row in rows] == [mail, other]
    newest = shardq.run("list", "--newest")
    assert [row.split()[0] for row in newest.lines[2:]] == [other, mail]
    assert newest.lines[0] == head
    assert "--newest goes with --state dead" in shardq.run("list", "--newest", "--state", "ready").err
    assert rows[0].rstrip().endswith(r" 1   ValueError: [bold]no[/bold] \x1b[31m address")
    assert "here" not in done.out
    assert other not in shardq.run("list", "--topic", "mail").out
    assert mail not in shardq.run("list", "--topic", "").out


def test_up_to_a_limit(shardq: Shell, engine: Engine) -> None:
    ids = [*engine.push_many([Task(n, at=FAR + n) for n in range(103)])]
    done = shardq.run("list")
    assert len(done.lines) == 2 + 100
    assert done.err == "there are more than these 100: --limit N shows more, --all all of them\n"
    assert [row.split()[0] for row in shardq.run("list", "--limit", "3", "--state", "scheduled").lines[2:]] == ids[:3]
    assert shardq.run("list", "--limit", "103").err == ""
    assert [task["id"] for task in shardq.run("list", "--json", "--all").objects] == ids
    assert len(shardq.run("list", "--json").objects) == 100


def test_by_due_time(shardq: Shell, engine: Engine) -> None:
    soon, later = engine.push(1, delay=60), engine.push(2, delay=7200)
    overdue = engine.push(3)
    for due, ids in {"0..1h": [soon], "..1h": [overdue, soon], "1h..": [later], "2030-01-01T00:00:00Z..": []}.items():
        assert [task["id"] for task in shardq.run("list", "--due", due, "--json").objects] == ids, due
    wait_until(
        lambda: [task["id"] for task in shardq.run("list", "--due", "-1h..0", "--json").objects] == [overdue],
        "it is due already",
    )


def test_what_is_due_next(shardq: Shell, engine: Engine) -> None:
    ids = [*engine.push_many([Task({"n": n}, at=FAR + n, topic=("", "mail")[n % 2]) for n in range(12)])]
    done = shardq.run("list", "--next")
    assert done.err == "there are more than these 10: --limit N shows more, --all all of them\n"
    head, _, *rows = done.lines
    assert head.split() == ["due", "(UTC)", "in", "id", "payload"]
    assert [row.split()[-2:] for row in rows] == [[id, f'{{"n":{n}}}'] for n, id in enumerate(ids[:10])]
    assert rows[0].startswith("2030-03-17 17:46:40 ") or rows[0].startswith(" 2030-03-17 17:46:40 ")
    some = shardq.run("list", "--next", "--limit", "3", "--topic", "mail", "--json").objects
    assert [task["id"] for task in some] == ids[1:6:2]
    assert len(shardq.run("list", "--next", "--all").lines) == 2 + 12
    done = shardq.run("list", "--next", "--no-payload")
    assert '{"n"' not in done.out
    assert "payload" not in shardq.run("list", "--limit", "1", "--no-payload", "--json").object
    for wrong in (["--state", "dead"], ["--holder", "me"], ["--newest"]):
        refused = shardq.run("list", "--next", *wrong)
        assert (refused.code, "--next goes with --state scheduled" in refused.err) == (2, True)


def test_payloads_do_not_steer_the_terminal(shardq: Shell, engine: Engine, url: str, name: str) -> None:
    nasty = "\x1b]0;owned\x07\x9b31m\u202e\r\n" + "x" * 100
    engine.push(nasty, at=FAR)
    with Engine(url, name=name, codec="raw") as raw:
        raw.push(nasty.encode(), at=FAR + 1)
        raw.push(b"\xff\x00", at=FAR + 2)
        raw.push(b"", at=FAR + 3)
    done = shardq.run("list", "--next")
    assert all(char.isprintable() or char == "\n" for char in done.out)
    first, second, third, _ = (line.rstrip().split("   ")[-1].strip() for line in done.lines[2:])
    assert first == second
    assert first.startswith(r"\x1b]0;owned\x07\x9b31m\u202e\r\nxxx")
    assert (len(first), first[-3:]) == (60, "...")
    assert third == "base64 /wA="


def test_a_worker_is_named_as_in_the_fleet(shardq: Shell, engine: Engine) -> None:
    engine.start()
    over = threading.Event()
    worker = engine.worker()
    worker.on("mail")(lambda _: over.wait())
    name = f"{socket.gethostname()}:{os.getpid()}"
    with working(worker):
        try:
            id = engine.push(1, topic="mail")
            wait_until(lambda: state_of(engine, id) == "leased", "it runs")
            wait_until(lambda: {member.pid for member in engine.fleet()} == {os.getpid()}, "the worker reports")
            assert name in shardq.run("list", "--state", "leased").out
            assert [task["id"] for task in shardq.run("list", "--holder", name, "--json").objects] == [id]
        finally:
            over.set()
