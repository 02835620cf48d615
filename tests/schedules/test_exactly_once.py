"""Every occurrence is pushed once over the whole fleet: while dispatchers are killed and frozen, schedules changed and
shards added.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from shardq import Engine
from shardq.core.layout.keys import control_keys
from tests.schedules.runs import Runs, server_ms
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Worker

SHARDS = 4
INTERVAL_S = 0.5
INTERVAL_MS = 500


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """The one that declares; it has no dispatcher."""
    with Engine(url, name=name, shards=SHARDS, timeout=30.0) as engine:
        yield engine


@pytest.fixture
def runs(engine: Engine, url: str, name: str) -> Iterator[Runs]:
    with Runs(url, name) as runs:
        yield runs


def dispatcher(url: str, name: str) -> Worker:
    worker = Worker("tests.support.dispatching", url, name, SHARDS)
    assert worker.said()
    return worker


def tick(engine: Engine, payload: object = 1) -> None:
    engine.every("tick", interval=INTERVAL_S, topic="t", payload=payload, catch_up="all")


def ran(runs: Runs, until_ms: float) -> None:
    """Waits for all occurrences up to an instant."""
    wait_until(
        lambda: (instants := runs.instants()) and instants[-1] >= until_ms - INTERVAL_MS,
        "the occurrences up to now have run",
        timeout=2 * SOON_S,
    )


def ended(engine: Engine, runs: Runs) -> None:
    """Removes the schedule: nothing of it may be left then but what has run, or is about to."""
    engine.schedule("tick").remove()
    wait_until(lambda: (s := engine.stats()).scheduled + s.ready + s.leased == 0, "nothing is left", timeout=SOON_S)


@pytest.mark.slow
@pytest.mark.ledger
@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_dispatchers_are_killed_over_and_over(
    engine: Engine, runs: Runs, servers: Servers, url: str, name: str
) -> None:
    chance = random.Random(4711)
    with ExitStack() as stack:
        fleet = [stack.enter_context(dispatcher(url, name)) for _ in range(3)]
        tick(engine)
        engine.every("other", interval=0.7, topic="t", catch_up="all")
        for _ in range(4):
            ran(runs, server_ms(servers, name) + chance.randrange(0, 1500))
            at = chance.randrange(len(fleet))
            fleet[at].kill()
            fleet[at] = stack.enter_context(dispatcher(url, name))
        ran(runs, server_ms(servers, name))
        engine.schedule("other").remove()
        ended(engine, runs)
    runs.check(INTERVAL_MS)
    runs.check(700, "other")
    assert engine.stats().dead == 0


@pytest.mark.slow
@pytest.mark.parametrize("point", ["intended", "pushed"])
def test_one_that_is_killed_while_it_pushes(
    engine: Engine, runs: Runs, servers: Servers, url: str, name: str, point: str
) -> None:
    with Worker("tests.schedules.halting", url, name, SHARDS, point, "SIGKILL") as first:
        assert first.said()
        tick(engine)
        told = server_ms(servers, name)
        wait_until(lambda: not first.running, "it has killed itself", timeout=SOON_S)
    with dispatcher(url, name):
        ran(runs, server_ms(servers, name))
        ended(engine, runs)
    runs.check(INTERVAL_MS)
    assert runs.instants()[0] <= told + INTERVAL_MS, "the first ones are made up for"


def is_stopped(worker: Worker) -> bool:
    return bool(psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED)


@pytest.mark.slow
@pytest.mark.parametrize("point", ["intended", "pushed"])
def test_one_that_is_frozen_while_it_pushes(
    engine: Engine, runs: Runs, servers: Servers, url: str, name: str, point: str
) -> None:
    with Worker("tests.schedules.halting", url, name, SHARDS, point, "SIGSTOP") as first:
        assert first.said()
        tick(engine)
        wait_until(lambda: is_stopped(first), "it has stopped itself", timeout=SOON_S)
        try:
            with dispatcher(url, name):
                ran(runs, server_ms(servers, name))
                os.kill(first.pid, signal.SIGCONT)
                ran(runs, server_ms(servers, name) + 1000)
                ended(engine, runs)
        finally:
            os.kill(first.pid, signal.SIGCONT)
    runs.check(INTERVAL_MS)


def pending(engine: Engine) -> int:
    stats = engine.stats()
    return stats.scheduled + stats.ready + stats.leased


LONG_AHEAD_MS = 3_600_000
"""So long ahead that no occurrence falls due while the test goes on: one that is due is not taken back."""


def interval_s(servers: Servers, name: str) -> int:
    """An interval whose next occurrence is at least half of ``LONG_AHEAD_MS`` away, and is pushed at once."""
    now_s = int(server_ms(servers, name) / 1000)
    return next(s for s in range(3600, 7200) if 1800 < -now_s % s < 3500)


@pytest.mark.parametrize("verb", ["pause", "remove"])
@pytest.mark.parametrize("point", ["intended", "pushed"])
@pytest.mark.parametrize("url", ["single"], indirect=True)  # it is all in one slot
def test_nothing_is_pushed_late_by_one_that_was_frozen(
    engine: Engine, servers: Servers, url: str, name: str, point: str, verb: str
) -> None:
    with Worker("tests.schedules.halting", url, name, SHARDS, point, "SIGSTOP", LONG_AHEAD_MS) as first:
        assert first.said()
        engine.every("daily", interval=interval_s(servers, name), topic="t")
        try:
            wait_until(lambda: is_stopped(first), "it has stopped itself", timeout=SOON_S)
            if verb == "pause":
                engine.schedule("daily").pause()
            else:
                engine.schedule("daily").remove()
            assert pending(engine) == 0
        finally:
            os.kill(first.pid, signal.SIGCONT)
        # it goes on, and reads what has become of the schedule before it does anything else
        engine.every("another", interval=interval_s(servers, name), topic="t")
        wait_until(lambda: pending(engine) > 0, "it pushes another schedule", timeout=SOON_S)
        engine.schedule("another").remove()
        assert pending(engine) == 0


@pytest.mark.slow
def test_declared_by_eight_processes_at_once(engine: Engine, runs: Runs, servers: Servers, url: str, name: str) -> None:
    with ExitStack() as stack:
        fleet = [stack.enter_context(Worker("tests.schedules.declaring", url, name, 5)) for _ in range(8)]
        assert {worker.said() for worker in fleet} == {"ready"}
        stack.enter_context(dispatcher(url, name))
        for worker in fleet:
            worker.tell()
        assert {worker.said() for worker in fleet} == {"done"}
        (schedule,) = engine.schedules()
        assert (schedule.name, schedule.interval, schedule.payload) == ("tick", 1.0, {"n": 1})
        ran(runs, server_ms(servers, name) + 1000)
        ended(engine, runs)
    runs.check(1000)
    assert all("~" not in id for id, _ in runs.seen), "declared once, changed never"


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_what_is_stored_of_a_schedule_stays_small(engine: Engine, servers: Servers, url: str, name: str) -> None:
    keys = control_keys(name)
    with dispatcher(url, name):
        engine.every("tick", interval=0.1, topic="t")
        wait_until(lambda: engine.stats().dispatched > 50, "it runs", timeout=SOON_S)
        assert servers.ask(keys.slot, "HSTRLEN", keys.schedules, "tick") < 10_000
        engine.schedule("tick").remove()
