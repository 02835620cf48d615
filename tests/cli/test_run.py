"""run: it dispatches, shows what it does, and ends at once when it is told to."""

from __future__ import annotations

import json
import signal
import time

import pytest

from cluster.server import Server
from shardq import Engine
from tests.cli.conftest import SHARDS
from tests.cli.shell import Shell
from tests.support.states import claim, state_of
from tests.support.waiting import wait_until

PROMPT_S = 1.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_dispatches_until_it_is_told_to_end(shardq: Shell, engine: Engine, number: signal.Signals) -> None:
    process = shardq.start("run")
    assert process.stdout is not None
    assert process.stdout.readline().startswith(f"serving '{engine.name}': {SHARDS} shards at redis")
    id = engine.push("x", delay=0.2)
    wait_until(lambda: state_of(engine, id) == "ready", "the task is dispatched")
    (delivery,) = claim(engine.consumer(), 1)
    assert delivery.payload == "x"
    began = time.monotonic()
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert time.monotonic() - began < PROMPT_S
    assert (process.returncode, err) == (0, "stopped\n")
    assert f"polling {SHARDS} of {SHARDS} shards, 1 processes" in out


def test_as_json(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("run", "--json")
    assert process.stdout is not None
    seen = json.loads(process.stdout.readline())
    assert {
        "name": engine.name,
        "shards": SHARDS,
        "failing": [],
        "healthy": True,
        "processes": 1,
    }.items() <= seen.items()
    assert seen["polling"] == list(range(SHARDS))
    assert seen["lateness"].keys() == {"tasks", "p50_ms", "p99_ms", "max_ms"}
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=10) == ("", "")
    assert process.returncode == 0


def test_quietly(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("run", "--quiet")
    id = engine.push("x")
    wait_until(lambda: state_of(engine, id) == "ready", "the task is dispatched")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "", "")


def test_shards_of_a_new_name(shardq: Shell, url: str, name: str) -> None:
    process = shardq.start("run", "--shards", "3")
    assert process.stdout is not None
    assert ": 3 shards at" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    other = shardq.start("run", "--shards", "5")
    assert other.stdout is not None
    assert ": 3 shards at" in other.stdout.readline()
    other.send_signal(signal.SIGINT)
    _, err = other.communicate(timeout=10)
    assert "has 3 shards, not the 5 asked for" in err


def test_it_ends_promptly_while_its_server_is_silent(shell: Shell, own_server: Server, name: str) -> None:
    process = shell.start("run", "--url", own_server.url, "--name", name)
    assert process.stdout is not None
    process.stdout.readline()
    own_server.pause()
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 0
    assert time.monotonic() - began < 3 * PROMPT_S, "the server is told, which it does not hear"
