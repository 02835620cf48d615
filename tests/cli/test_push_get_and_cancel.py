"""push, get, reschedule and cancel of one task."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.core.layout.slots import slot_of
from shardq.engine.access import EngineAccess
from tests.cli.shell import Shell
from tests.support.servers import Servers
from tests.support.states import claim, put, state_of
from tests.support.waiting import wait_until

FAR = "2099-01-31T12:00:00Z"


def test_push_prints_the_id_and_get_shows_the_task(shardq: Shell, engine: Engine) -> None:
    pushed = shardq.run("push", '{"order": 42}', "--delay", "30m")
    assert (pushed.code, pushed.err) == (0, "")
    (id,) = pushed.lines
    task = engine.get(id)
    assert task is not None
    assert task.payload == {"order": 42}
    assert task.due is not None
    assert dt.timedelta(minutes=29) < task.due - dt.datetime.now(dt.UTC) < dt.timedelta(minutes=31)
    seen = shardq.run("get", id)
    assert seen.code == 0
    assert {"state          scheduled", 'payload        {"order":42}', f"id             {id}"} <= set(seen.lines)
    assert [line for line in seen.lines if line.startswith(("tags", "headers", "failed "))] == []


@pytest.mark.parametrize("words", [("push", "1"), ("import", "lines"), ("forward", "mail", "--to", "list")])
def test_a_name_that_is_new_is_told(shardq: Shell, name: str, home: Path, words: tuple[str, ...]) -> None:
    """It may be a slip, and then nobody would ever dispatch what is pushed."""
    (home / "lines").write_text('{"payload": 1}\n')
    words = tuple(str(home / word) if word == "lines" else word for word in words)
    first, second = shardq.run(*words), shardq.run(*words)
    assert (first.code, second.code) == (0, 0)
    for part in (f"there was no engine named {name!r} at ", f"`shardq run --name {name}`", f"--remove {name}`"):
        assert part in first.err
    assert "no engine" not in second.err
    assert shardq.run("engines", "--remove", name, "--yes").code == 0


def test_the_attempts_of_a_task_are_lines(shardq: Shell, engine: Engine) -> None:
    engine.start()
    id = engine.push(1)
    consumer = engine.consumer()
    for reason in ("one", "two"):
        (delivery,) = claim(consumer, 1)
        consumer.retry(delivery, reason=reason)
    failed = [line.split(": ")[1] for line in shardq.run("get", id).lines if line.startswith("failed ")]
    assert failed == ["one", "two"]
    assert [each["reason"] for each in shardq.run("get", id, "--json").object["attempts"]] == ["one", "two"]


def test_every_option_of_a_task(shardq: Shell, engine: Engine) -> None:
    pushed = shardq.run(
        *("push", "[1]", "--at", FAR, "--topic", "email", "--id", "x", "--dedup", "60", "--max-attempts", "5"),
        *("--header", "k=v", "--header", "e=a=b", "--tag", "user-42", "--tag", "digest", "--json"),
    )
    assert pushed.object == {"id": "email/x", "outcome": "pushed", "state": None}
    assert shardq.run("get", "email/x", "--json").object == {
        "id": "email/x",
        "topic": "email",
        "key": None,
        "state": "scheduled",
        "due": FAR,
        "deadline": None,
        "holder": None,
        "died": None,
        "attempt": 1,
        "failures": 0,
        "lapses": 0,
        "reason": None,
        "payload": [1],
        "headers": {"k": "v", "e": "a=b"},
        "max_attempts": 5,
        "tags": ["user-42", "digest"],
        "url": None,
        "expires": None,
        "codec": "json",
        "attempts": [],
        "pushed": None,
        "ended": None,
        "seconds": None,
        "failure": None,
    }


def test_a_webhook(shardq: Shell, engine: Engine) -> None:
    url = "https://customer.example/in"
    id = shardq.run("push", "1", "--topic", "hooks", "--webhook", url, "--delay", "1h").out.strip()
    assert id.startswith("hooks/customer.example~b7eccf85/")
    assert shardq.run("get", id, "--json").object["url"] == url
    assert shardq.run("list", "--json").object["url"] == url
    assert f"url            {url}" in shardq.run("get", id).lines
    refused = shardq.run("push", "1", "--webhook", f"{url}#part")
    assert (refused.code, refused.out) == (2, "")
    assert "error: --webhook can't have a fragment" in refused.err


def test_a_window_and_a_throttle(shardq: Shell, engine: Engine) -> None:
    words = ("push", "1", "--id", "x", "--at", FAR, "--window", "1h", "--throttle", "5m")
    assert shardq.run(*words).lines == ["x"]
    task = engine.get("x")
    assert task is not None
    assert task.due is not None
    begin = dt.datetime.fromisoformat(FAR)
    assert begin < task.due < begin + dt.timedelta(hours=1)
    again = shardq.run(*words)
    assert (again.code, again.err) == (0, "kept: the id is taken by a task that is scheduled\n")
    assert shardq.run("cancel", "x").code == 0
    assert "throttle) is still open" in shardq.run(*words).err
    wrong = shardq.run("push", "1", "--throttle", "5m")
    assert wrong.code == 2
    assert "--throttle 300.0 was given without --id" in wrong.err


def test_a_task_that_expires(shardq: Shell, engine: Engine) -> None:
    engine.start()
    (id,) = shardq.run("push", "1", "--expires", "1ms", "--id", "x").lines
    wait_until(lambda: engine.consumer().claim(1) == [] and state_of(engine, id) == "dead", "it is buried")
    task = engine.get(id)
    assert task is not None
    assert "expired" in str(task.reason)
    assert shardq.run("push", "2", "--expires", FAR, "--delay", "1h").code == 0
    wrong = shardq.run("push", "2", "--expires", "1m", "--delay", "1h")
    assert wrong.code == 2
    assert "is not after the task's due time" in wrong.err


@pytest.fixture
def two_lines(tmp_path: Path) -> str:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"payload": 2, "delay": 3600}\n' * 2)
    return str(file)


def test_a_push_that_waits_for_copies(
    home: Path, own_server: Server, replica: Server, name: str, two_lines: str
) -> None:
    shardq = Shell(home, {"SHARDQ_URL": own_server.url, "SHARDQ_NAME": name})
    durably = ("--durability", "replicated")
    assert shardq.run("push", "1", *durably, "--delay", "1h").code == 0
    replica.pause()
    done = shardq.run("push", "1", *durably, "--delay", "1h")
    assert done.code == 1
    assert "1 task is stored, but not replicated: 0 confirmed it in time" in done.err
    many = shardq.run("import", two_lines, *durably)
    replica.resume()
    shardq.end()
    assert many.code == 1
    first, last, error = many.err.splitlines()
    assert (first, last) == ("2 pushed", "ended early, 2 lines read; the same command goes on behind line 0")
    assert "2 tasks are stored, but not replicated" in error
    with Engine(own_server.url, name=name) as engine:
        assert state_of(engine, done.out.strip()) == "scheduled"
        assert engine.stats().scheduled == 4


def test_a_push_that_nothing_could_confirm(shardq: Shell, engine: Engine, two_lines: str) -> None:
    for what in (("push", "1", "--delay", "1h"), ("import", two_lines)):
        done = shardq.run(*what, "--durability", "replicated")
        assert done.code == 1
        assert "has no replica" in done.err
        assert "nothing was stored" in done.err
    assert engine.stats().scheduled == 0


@pytest.mark.parametrize(
    ("words", "payload"),
    [
        (["1.50"], 1.5),
        (['{"a":  [ null ]}'], {"a": [None]}),
        (["--text", "not JSON: é"], "not JSON: é"),
        (["--raw", "{bytes"], b"{bytes"),
        (["--raw", "é"], "é".encode()),
    ],
)
def test_payloads(shardq: Shell, engine: Engine, words: list[str], payload: object) -> None:
    (id,) = shardq.run("push", *words, "--delay", "1h").lines
    task = engine.get(id)
    assert task is not None
    assert task.payload == payload


def test_json_is_stored_as_it_was_written(shardq: Shell, engine: Engine) -> None:
    to = f"{engine.name}-list"
    engine.forward("t", to=to)
    engine.start()
    shardq.run("push", '{"n": 1.00,   "big": 123456789012345678901234567890}', "--topic", "t")
    with Servers(str(EngineAccess(engine).options.url)) as servers:
        (payload,) = wait_until(lambda: servers.ask(slot_of(to), "LRANGE", to, 0, -1), "it is forwarded")
        servers.ask(slot_of(to), "DEL", to)
    assert payload == b'{"n": 1.00,   "big": 123456789012345678901234567890}'


def test_a_kept_task_is_said_on_stderr(shardq: Shell, engine: Engine) -> None:
    shardq.run("push", "1", "--id", "x", "--delay", "1h")
    again = shardq.run("push", "2", "--id", "x")
    assert (again.code, again.out) == (0, "x\n")
    assert again.err == "kept: the id is taken by a task that is scheduled\n"
    assert shardq.run("push", "2", "--id", "x", "--json").object == {"id": "x", "outcome": "kept", "state": "scheduled"}
    refused = shardq.run("push", "2", "--id", "x", "--on-conflict", "reject")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == (
        "error: id 'x' is already scheduled; push with --on-conflict keep to leave it or \"replace\" to take over\n"
    )
    assert shardq.run("push", "2", "--id", "x", "--on-conflict", "replace", "--json").object["outcome"] == "replaced"


def test_what_is_gone_is_said_with_exit_code_1(shardq: Shell, engine: Engine) -> None:
    for command in (["get", "nothing"], ["cancel", "nothing"], ["reschedule", "nothing", "--delay", "5"]):
        done = shardq.run(*command)
        assert (done.code, done.out, done.err) == (1, "gone\n", ""), command
    assert shardq.run("--json", "get", "nothing").object == {"id": "nothing", "state": "gone"}


def test_an_id_without_its_topic_is_explained(shardq: Shell, engine: Engine) -> None:
    engine.push(1, topic="mail", id="order-1", delay=900)
    done = shardq.run("cancel", "order-1")
    note = "note: an id includes the topic, as TOPIC/ID: there is mail/order-1\n"
    assert (done.code, done.out, done.err) == (1, "gone\n", note)
    done = shardq.run("get", "order-1")
    assert (done.code, done.out, done.err) == (1, "gone\n", note)
    assert shardq.run("cancel", "mail/order-1").code == 0


def test_cancel(shardq: Shell, engine: Engine) -> None:
    ids = [engine.push(n, delay=3600) for n in range(2)]
    done = shardq.run("cancel", *ids)
    assert (done.code, done.lines) == (0, [f"cancelled {id}" for id in ids])
    assert [engine.get(id) for id in ids] == [None, None]
    kept = engine.push(1, delay=3600)
    mixed = shardq.run("cancel", ids[0], kept, "--json")
    assert mixed.code == 1
    assert mixed.objects == [{"id": ids[0], "outcome": "gone"}, {"id": kept, "outcome": "cancelled"}]


def test_cancel_of_a_running_task_is_refused(shardq: Shell, engine: Engine) -> None:
    engine.start()
    id = put(engine, "leased")
    assert shardq.run("cancel", id).out == "running\n"
    assert shardq.run("cancel", id).code == 1


def test_reschedule(shardq: Shell, engine: Engine) -> None:
    id = engine.push(1, delay=60)
    moved = shardq.run("reschedule", id, "--at", FAR)
    assert (moved.code, moved.out) == (0, "moved\n")
    task = engine.get(id)
    assert task is not None
    assert task.due == dt.datetime(2099, 1, 31, 12, tzinfo=dt.UTC)
    assert shardq.run("reschedule", id, "--delay", "1d", "--json").object == {"id": id, "outcome": "moved"}
