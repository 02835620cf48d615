"""requeue, purge, pause, resume and limit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from shardq import Engine
from shardq.core.layout.topology import Limit
from tests.cli.shell import Shell
from tests.cli.test_list import bury
from tests.support.states import claim, put, state_of
from tests.support.waiting import wait_until


@pytest.fixture
def running(engine: Engine) -> Engine:
    engine.start()
    return engine


def test_requeue_by_id(shardq: Shell, running: Engine) -> None:
    first, second = bury(running, 2)
    done = shardq.run("requeue", first)
    assert (done.code, done.out) == (0, "requeued\n")
    wait_until(lambda: state_of(running, first) == "ready", "it is dispatched again")
    done = shardq.run("requeue", first, second, "gone", "--json")
    assert done.code == 1
    assert [told["outcome"] for told in done.objects] == ["ready", "requeued", "gone"]


def test_purge_a_topic(shardq: Shell, running: Engine) -> None:
    for topic in ("mail", ""):
        for state in ("scheduled", "dead", "ready"):
            put(running, state, topic=topic)
    assert shardq.run("purge", "--topic", "mail", "--yes").out == "3 removed\n"
    assert shardq.run("purge", "--everything", "--yes", "--json").object == {"removed": 3, "topic": None}


def test_purge_asks(shardq: Shell, engine: Engine) -> None:
    engine.push(1, delay=3600)
    refused = shardq.run("purge", "--everything")
    assert (refused.code, refused.out) == (2, "")
    assert "add --yes" in refused.err
    for answer, left in (("n", 1), ("y", 0)):
        done = shardq.on_terminal("purge", "--everything", columns=200, rows=30, answer=answer)
        assert f"Remove all tasks of '{engine.name}' at redis" in done.out
        assert ": 1 scheduled, 0 ready, 0 dead? [y/N]: " in done.out
        assert ("nothing removed" if left else "1 removed") in done.out
        assert done.code == left
        assert engine.stats().scheduled == left


def test_pause_and_resume(shardq: Shell, running: Engine) -> None:
    assert shardq.run("pause", "mail").out == "topic 'mail' is paused\n"
    id = running.push(1, topic="mail")
    wait_until(lambda: state_of(running, id) == "ready", "it is dispatched")
    assert running.topology.paused == {"mail"}
    assert running.consumer("mail").claim(1) == []
    assert shardq.run("resume", "mail", "--json").object == {"topic": "mail", "paused": False}
    assert [delivery.id for delivery in claim(running.consumer("mail"), 1)] == [id]


def test_configure(shardq: Shell, engine: Engine) -> None:
    shown = "25 attempts a task; dead tasks are kept for 30 d, 100,000 at most\n"
    assert shardq.run("configure").out == shown
    assert shardq.run("configure", "--dead-age", "0.5", "--dead-count", "0").out == (
        "25 attempts a task; dead tasks are kept for 0.5 s, 0 at most\n"
    )
    assert shardq.run("configure", "--done-age", "1h", "--done-count", "5000").out.endswith(
        "; what became of others for 60 min, of 5,000 at most\n"
    )
    changed = {"max_attempts": 1, "dead_age": 604_800, "dead_count": 0, "done_age": 3600, "done_count": 5000}
    assert shardq.run("configure", "--max-attempts", "1", "--dead-age", "7d", "--json").object == changed
    assert shardq.run("configure", "--json").object == changed
    assert msgspec.to_builtins(engine.stats().settings) == changed
    wrongs = (("--max-attempts", "0"), ("--dead-age", "soon"), ("--dead-age", "0"), ("--dead-count", "-1"))
    for wrong in (*wrongs, ("--done-age", "x")):
        done = shardq.run("configure", *wrong)
        assert (done.code, done.out) == (2, "")
    assert msgspec.to_builtins(engine.stats().settings) == changed


def test_what_became_of_tasks(shardq: Shell, running: Engine) -> None:
    assert "it is not kept what becomes of tasks" in shardq.run("list", "--state", "done").err
    assert shardq.run("configure", "--done-age", "1h").code == 0
    assert "no task has ended since" in shardq.run("list", "--state", "done").err
    id = running.push("private", topic="mail", id="123")
    consumer = running.consumer("mail")
    consumer.ack(claim(consumer, 1))
    shown = shardq.run("get", id)
    assert (shown.code, "private" in shown.out) == (0, False)
    lines = dict(line.split(None, 1) for line in shown.lines)
    assert {"id", "state", "ended", "pushed", "holder"} <= lines.keys()
    assert lines["state"] == "done"
    assert shardq.run("get", id, "--json").object["ended"]
    listed = shardq.run("list", "--state", "done", "--topic", "mail")
    assert id in listed.out
    assert "kept since " in listed.err
    (line,) = [line for line in shardq.run("stats").lines if line.startswith("settings: ")]
    assert "what became of others for 60 min, of 100,000 at most (since " in line
    assert [task["id"] for task in shardq.run("list", "--state", "done", "--json").objects] == [id]
    again = shardq.run("requeue", id)
    assert (again.code, again.out) == (1, "gone\n")
    assert f"note: {id} is done; its payload is not kept: push it again" in again.err
    refused = shardq.run("list", "--state", "done", "--tag", "t")
    assert (refused.code, refused.out) == (2, "")
    assert "is listed by --topic and --key alone" in refused.err
    assert shardq.run("configure", "--done-age", "0").code == 0
    assert shardq.run("get", id).code == 1


def test_configure_topics_of_a_file(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    file = tmp_path / "topics.toml"
    file.write_text(
        '[topics.mail]\nrate = 50\nconcurrency = 8\n[topics.log]\nforward = "stream:log"\nmaxlen = 100\n'
        '[topics.""]\npause = true\n'
    )
    lines = ["mail: at most 50 a second, 8 at once", "log: to the stream 'log', about 100 entries", "(default): paused"]
    for dry_run in (["--dry-run"], []):
        done = shardq.run("configure", str(file), *dry_run)
        told = f"3 topics in {file}: 3 {'would change' if dry_run else 'changed'}"
        assert (done.code, done.out.splitlines()) == (0, [*lines, told]), done
        engine.stats()
        assert len(engine.topology.topics) == (0 if dry_run else 3)
    assert shardq.run("configure", str(file)).out == f"3 topics in {file}: 0 changed\n"
    other = tmp_path / "topics.json"
    other.write_text('{"topics": {"mail": {"rate": null}}}')
    done = shardq.run("configure", str(other), "--json")
    assert done.object == {"topics": {"mail": "no settings"}, "changed": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[topics.mail", "topics.toml can't be read: "),
        ("rate = 5", "topics.toml needs one table for each topic, as [topics.mail], and nothing else"),
        ("[topics.mail]\nrates = 5", "topics.toml: topic 'mail': there is no setting 'rates'; there is rate,"),
    ],
)
def test_a_file_of_topics_that_is_wrong(shardq: Shell, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "topics.toml").write_text(text)
    done = shardq.run("configure", str(tmp_path / "topics.toml"))
    assert (done.code, done.out) != (0, "")
    assert message in done.err


def test_a_forwarded_topic_has_a_rate_only(shardq: Shell, engine: Engine) -> None:
    assert shardq.run("forward", "mail", "--to", "theirs").code == 0
    done = shardq.run("limit", "mail", "--concurrency", "5")
    assert done.code != 0
    assert "forwarded to the list 'theirs', so it can't be limited to 5 at once" in done.err
    assert "give a rate alone, or stop forwarding it first" in done.err
    assert shardq.run("limit", "mail", "--rate", "5").code == 0
    engine.limit("sms", concurrency=5)
    done = shardq.run("forward", "sms", "--to", "theirs")
    assert done.code != 0
    assert "limited to 5 at once, so it can't be forwarded" in done.err
    topics = {row["topic"]: (row["route"], row["limit"]) for row in shardq.run("topics", "--json").objects}
    assert topics == {
        "mail": ({"to": "theirs", "side": "right", "maxlen": None}, {"rate": 5.0, "concurrency": None}),
        "sms": (None, {"rate": None, "concurrency": 5}),
    }


def test_limit(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("limit", "mail", "--rate", "0.5", "--concurrency", "1000")
    assert (done.code, done.out) == (0, "topic 'mail' is limited to 0.5 a second, 1,000 at once\n")
    engine.stats()  # meets the new topology
    assert engine.topology.limits == {"mail": Limit(rate=0.5, concurrency=1000)}
    done = shardq.run("limit", "mail", "--rate", "1000")
    assert done.out == "topic 'mail' is limited to 1,000 a second, any number at once\n"
    assert shardq.run("limit", "mail", "--off", "--json").object == {
        "topic": "mail",
        **dict.fromkeys(("rate", "concurrency", "per_key", "per_key_rate", "on_failure")),
    }
    engine.stats()
    assert engine.topology.limits == {}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["requeue", "/x"], "begins with '/'"),
        (["list", "--limit", "0"], "--limit"),
        (["list", "--topic", "a b"], "a topic can't be 'a b'"),
        (["list", "--holder", "a b"], "the name of a consumer can't be 'a b'"),
        (["purge"], "give --topic TOPIC, or --everything"),
        (["purge", "--topic", "x", "--everything"], "give --topic TOPIC, or --everything"),
        (["purge", "--topic", "a b", "--yes"], "a topic can't be 'a b'"),
        (["pause", "a b"], "a topic can't be 'a b'"),
        (["resume", "a b"], "a topic can't be 'a b'"),
        (["limit", "x"], "give --rate, --concurrency or --per-key, or --off"),
        (["limit", "x", "--off", "--rate", "1"], "give --rate, --concurrency or --per-key, or --off"),
        (["limit", "x", "--rate", "-1"], "--rate"),
        (["limit", "x", "--concurrency", "0"], "--concurrency"),
    ],
)
def test_what_is_wrong_with_the_command_line(shardq: Shell, engine: Engine, words: list[str], message: str) -> None:
    done = shardq.run(*words)
    assert (done.code, done.out) == (2, ""), done.err
    assert message in done.err
    assert "Traceback" not in done.err


def test_a_name_that_is_not_there_is_not_made(shardq: Shell, name: str) -> None:
    for words in (
        *(["shards"], ["resize", "8"], ["list"], ["forecast"]),
        *(
            ["requeue", "x"],
            ["cancel", "--topic", "x", "--yes"],
            ["purge", "--topic", "x", "--yes"],
            ["pause", "x"],
            ["resume", "x"],
            ["limit", "x", "--off"],
        ),
    ):
        done = shardq.run(*words)
        assert (done.code, done.out) == (1, ""), words
        assert done.err.startswith(f"error: there is no engine named '{name}' at redis://")


def test_a_topic_that_never_had_a_task_is_named(shardq: Shell, engine: Engine) -> None:
    note = "note: topic 'mial' has had no task yet"
    assert note in shardq.run("pause", "mial").err
    engine.push(1, topic="mail")
    for words in (("pause", "mial"), ("limit", "mial", "--rate", "5"), ("forward", "mial", "--to", "x")):
        done = shardq.run(*words)
        assert (done.code, done.own_err) == (0, f"{note}; did you mean 'mail'?\n"), words
    assert shardq.run("pause", "mail").err == ""


def test_a_url_without_its_colon_is_no_list(shardq: Shell, engine: Engine) -> None:
    for where in ("http//shop/hooks", "https:/shop/hooks"):
        done = shardq.run("forward", "mail", "--to", where)
        assert (done.code, "a URL has :// behind its scheme" in done.err) == (2, True)
