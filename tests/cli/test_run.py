"""run dispatches, shows what it does, and ends at once when it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator

import psutil
import pytest

from cluster.server import Server
from shardq import Engine, Task
from shardq.cli.run import _look_at_all, _said
from tests.cli.conftest import SHARDS
from tests.cli.shell import LONGEST_S, ON_BOTH, Shell, own
from tests.support.states import claim, state_of
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, gone

PROMPT_S = 6.0
"""To end takes less than a second, on a machine that is not busy. What was not woken would go on for ten, or more."""

SILENT_S = 3.0
"""Likewise, of the quickest of some tries."""

TRIES = 5


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


@pytest.mark.slow
@ON_BOTH
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_dispatches_until_it_is_told_to_end(shardq: Shell, engine: Engine, number: signal.Signals) -> None:
    process = shardq.start("run")
    told = lines(process)
    assert next(told).startswith(f"serving '{engine.name}': {SHARDS} shards at redis")
    assert any(f"polling {SHARDS} of {SHARDS} shards, 1 dispatcher in all" in line for line in told)
    id = engine.push("x", delay=0.2)
    wait_until(lambda: state_of(engine, id) == "ready", "the task is dispatched")
    (delivery,) = claim(engine.consumer(), 1)
    assert delivery.payload == "x"
    began = time.monotonic()
    process.send_signal(number)
    _, err = process.communicate(timeout=LONGEST_S)
    assert time.monotonic() - began < PROMPT_S
    assert (process.returncode, own(err)) == (0, "stopped\n")


@pytest.mark.slow
def test_as_json(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("run", "--json")
    seen = next(seen for seen in map(json.loads, lines(process)) if seen.get("ok"))
    assert {
        "name": engine.name,
        "shards": SHARDS,
        "failing": [],
        "ok": True,
        "dispatchers": 1,
    }.items() <= seen.items()
    assert seen["polling"] == list(range(SHARDS))
    assert seen["lateness"].keys() == {"tasks", "p50_ms", "p99_ms", "max_ms"}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, own(err)) == (0, "")


def test_quietly(shardq: Shell, engine: Engine) -> None:
    process = shardq.start("run", "--quiet")
    id = engine.push("x")
    wait_until(lambda: state_of(engine, id) == "ready", "the task is dispatched")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, out, own(err)) == (0, "", "")


@pytest.mark.parametrize("words", [(), ("--quiet", "--processes", "2")])
def test_it_waits_for_the_program_that_creates_the_engine(
    shardq: Shell, url: str, name: str, words: tuple[str, ...]
) -> None:
    """Whoever starts first: the settings are those that the program names."""
    process = shardq.start("run", *words)
    assert process.stderr is not None
    assert f"there is no engine named {name!r} at {url} yet: waiting for a process" in process.stderr.readline()
    with Engine(url, name=name, shards=3, max_attempts=8) as engine:
        id = engine.push("x")
        wait_until(lambda: state_of(engine, id) == "ready", "the task is dispatched", timeout=SOON_S)
        settings = engine.topology.settings
        assert (engine.topology.shards, settings.max_attempts) == (3, 8)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0


def test_it_ends_while_it_waits(shardq: Shell, name: str) -> None:
    process = shardq.start("run")
    assert process.stderr is not None
    assert name in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LONGEST_S)
    assert (process.returncode, own(err)) == (0, "stopped\n")
    assert shardq.run("stats").code == 1, "it has created nothing"


def test_it_creates_the_engine_when_told_to(shardq: Shell, name: str) -> None:
    process = shardq.start("run", "--create")
    assert process.stdout is not None
    assert ": 16 shards at" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LONGEST_S)


@pytest.mark.slow
def test_in_several_processes(shardq: Shell, engine: Engine) -> None:
    """They share the shards; one that is killed is replaced, and all end with the command, also when that is killed."""
    process = shardq.start("run", "--processes", "2")
    assert next(lines(process)).startswith(f"serving '{engine.name}' in 2 processes: {SHARDS} shards at redis")
    wait_until(lambda: len(_look_at_all(engine).stats.dispatchers) == 2, "both dispatch", timeout=SOON_S)
    assert _said(_look_at_all(engine), 2) == "polling in 2 processes, 2 dispatchers in all"
    first = psutil.Process(process.pid).children()
    assert len(first) == 2
    victim = first[0].pid
    first[0].kill()

    def others() -> list[psutil.Process]:
        return [each for each in psutil.Process(process.pid).children() if each.pid != victim and not gone(each)]

    wait_until(lambda: len(others()) == 2, "another has begun", timeout=SOON_S)
    ids = engine.push_many([Task("x", delay=0.1) for _ in range(50)])
    wait_until(lambda: {state_of(engine, id) for id in ids} == {"ready"}, "all are dispatched", timeout=SOON_S)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=LONGEST_S)
    assert process.returncode == 0
    assert f"dispatcher process {victim} has ended by SIGKILL" in err
    assert err.endswith("stopped\n")
    process = shardq.start("run", "--processes", "2", "--quiet")
    ours = wait_until(lambda: psutil.Process(process.pid).children(), "it has children", timeout=SOON_S)
    process.kill()
    wait_until(lambda: all(gone(child) for child in ours), "they have ended", timeout=SOON_S)


@pytest.mark.slow
def test_two_signals_at_once(shardq: Shell, engine: Engine) -> None:
    """A process of many threads may take both where nobody waits for them; in some of the tries it does."""
    for _ in range(TRIES):
        process = shardq.start("run", "--quiet")
        id = engine.push("x")
        wait_until(lambda: state_of(engine, id) == "ready", "it dispatches")  # noqa: B023  called at once
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LONGEST_S)
        assert process.returncode in (0, 1, 130, -signal.SIGTERM)


def test_it_ends_promptly_while_its_server_is_silent(shell: Shell, own_server: Server, name: str) -> None:
    quickest = LONGEST_S
    # a machine that stood still makes one try slow; waiting for the server would make slow all of them
    for _ in range(TRIES):
        process = shell.start("run", "--create", "--url", own_server.url, "--name", name)
        next(lines(process))
        own_server.pause()
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LONGEST_S)
        quickest = min(quickest, time.monotonic() - began)
        assert process.returncode == 0
        if quickest < SILENT_S:
            break
        own_server.resume()
    assert quickest < SILENT_S, "the server is told, which it does not hear"
