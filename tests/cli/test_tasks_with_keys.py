"""Keys on the command line: push, import, list, cancel, limit, hold and configure."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardq import Engine
from shardq.core.layout.topology import Limit
from tests.cli.shell import Shell
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until


def test_push_list_and_cancel(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("push", '{"n": 1}', "--topic", "webhook", "--key", "customer-7", "--id", "a", "--delay", "1h")
    assert (done.code, done.out) == (0, "webhook/customer-7/a\n")
    lines = '{"payload": 2, "key": "customer-8", "id": "b"}\n{"payload": 3, "id": "c"}\n{"payload": 4, "key": "a/b"}\n'
    done = shardq.run("import", "-", "--topic", "webhook", "--key", "customer-7", "--delay", "1h", stdin=lines.encode())
    assert done.code == 1
    assert "a key can't" in done.err or "the key 'a/b' has '/'" in done.err
    done = shardq.run("list", "--topic", "webhook", "--key", "customer-7", "--json")
    assert {task["id"] for task in done.objects} == {"webhook/customer-7/a", "webhook/customer-7/c"}
    assert {task["key"] for task in done.objects} == {"customer-7"}
    refused = shardq.run("list", "--key", "a/b")
    assert (refused.code, refused.out) == (2, "")
    done = shardq.run("cancel", "--topic", "webhook", "--key", "customer-7", "--yes")
    assert (done.code, done.out) == (0, "2 cancelled\n")
    assert state_of(engine, "webhook/customer-8/b") == "scheduled"
    assert shardq.run("cancel", "webhook/customer-8/b").out == "cancelled\n"
    engine.push("x", key="k", id="mine", delay=FAR_S)
    assert shardq.run("cancel", "/k/mine").out == "cancelled\n"


def test_limit(shardq: Shell, engine: Engine, tmp_path: Path) -> None:
    engine.open()
    done = shardq.run("limit", "webhook", "--per-key", "20", "--per-key-rate", "300/m")
    assert done.out == (
        "topic 'webhook' is limited to any number a second, any number at once; of each key to 20 at once, 5 a second\n"
    )
    assert engine.stats().topics["webhook"].limit == Limit(per_key=20, per_key_rate=5)
    done = shardq.run("limit", "webhook", "--rate", "9", "--per-key", "1", "--on-failure", "skip", "--json")
    assert done.object == {
        "topic": "webhook", "rate": 9, "concurrency": None, "per_key": 1, "per_key_rate": None, "on_failure": "skip"
    }  # fmt: skip
    assert shardq.run("limit", "webhook", "--off").out == "topic 'webhook' is no longer limited\n"
    topics = tmp_path / "topics.toml"
    topics.write_text('[topics.webhook]\nper_key = 1\non_failure = "skip"\n')
    assert shardq.run("configure", str(topics)).code == 0
    assert engine.stats().topics["webhook"].limit == Limit(per_key=1, on_failure="skip")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("limit", "t", "--per-key-rate", "5"), "--per-key-rate and --on-failure go with --per-key"),
        (("limit", "t", "--per-key", "0"), "0 is not in the range 1<=x<=1000"),
        (("limit", "t", "--per-key", "2", "--on-failure", "skip"), "--on-failure goes with --per-key 1"),
        (("hold", "t", "k"), "give --for, --until, or --off"),
        (("hold", "t", "k", "--for", "1m", "--off"), "give --for, --until, or --off"),
        (("hold", "t", "a/b", "--for", "1m"), "has '/'"),
        (("pause", "t", "--for", "1m", "--until", "2030-01-31T12:00:00Z"), "give --for or --until"),
    ],
)
def test_what_is_refused(shardq: Shell, engine: Engine, words: tuple[str, ...], message: str) -> None:
    engine.open()
    done = shardq.run(*words)
    assert (done.code, done.out) == (2, "")
    assert message in done.err


def test_hold(shardq: Shell, engine: Engine) -> None:
    engine.start()
    held = engine.push(1, topic="webhook", key="customer-7", delay=0.5)
    other = engine.push(2, topic="webhook", key="customer-8", delay=0.5)
    done = shardq.run("hold", "webhook", "customer-7", "--for", "10m")
    assert done.out.startswith("key 'customer-7' of the topic 'webhook' is on hold until 2")
    consumer = engine.consumer("webhook")
    [delivery] = claim(consumer, 1)
    assert delivery.id == other
    wait_until(lambda: state_of(engine, held) == "held", "it is held")
    done = shardq.run("hold", "webhook", "customer-7", "--until", "2100-01-31T12:00:00Z", "--json")
    assert done.object == {"topic": "webhook", "key": "customer-7", "until": "2100-01-31T12:00:00+00:00"}
    done = shardq.run("hold", "webhook", "customer-7", "--off")
    assert done.out == "key 'customer-7' of the topic 'webhook' is no longer on hold\n"
    [delivery] = claim(consumer, 1)
    assert delivery.id == held
    done = shardq.run("pause", "webhook", "--until", "2100-01-31T12:00:00Z")
    assert done.out == "topic 'webhook' is paused until 2100-01-31 12:00:00 UTC\n"
