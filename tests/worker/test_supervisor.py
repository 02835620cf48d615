"""Workers with several processes, whatever the program around them does with its threads, its signals, its children and
its descriptors; and children that die. What they held is never lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from shardq import Engine, Task
from tests.support.states import claim, counted, state_of
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Start, Worker, ends, gone
from tests.support.working import Note, Options, logged, sated

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)

Noted = Callable[[str], list[Note]]

PROGRAMS = ["main", "thread", "pool", "blocked", "loop", "ignores", "reaps"]


@pytest.fixture
def running(url: str, name: str) -> Iterator[Engine]:
    # one shard: tasks come in the order in which they became ready
    with Engine(url, name=name, shards=1) as engine:
        engine.start()
        yield engine


def children(worker: Worker) -> list[psutil.Process]:
    """Those that live."""
    return [child for child in psutil.Process(worker.pid).children() if not gone(child)]


def busy(noted: Noted, count: int) -> set[int]:
    """Waits for so many handlers to run; the processes they run in."""
    wait_until(lambda: len(noted("begun")) == count, f"{count} run", timeout=SOON_S)
    return {note.pid for note in noted("begun")}


@pytest.mark.slow
@pytest.mark.parametrize("amid", PROGRAMS)
def test_a_child_that_gets_sigterm_finishes_and_is_replaced(
    running: Engine, start: Start, noted: Noted, open_gate: Callable[[], None], tmp_path: Path, amid: str
) -> None:
    ids = running.push_many([Task("gate") for _ in range(4)])
    worker = start(amid, processes=2, concurrency=2)
    pids = busy(noted, 4)
    assert {child.pid for child in children(worker)} == pids
    told = psutil.Process(min(pids))
    os.kill(told.pid, signal.SIGTERM)
    wait_until(lambda: sated(tmp_path) == {told.pid}, "it claims no more", timeout=SOON_S)
    assert not gone(told)
    open_gate()
    wait_until(lambda: gone(told), "it has ended", timeout=SOON_S)
    wait_until(lambda: len(children(worker)) == 2, "another has begun", timeout=SOON_S)
    wait_until(lambda: {note.id for note in noted("done")} == set(ids), "all are done", timeout=SOON_S)
    assert {note.attempt for note in noted("begun")} == {1}
    assert not (tmp_path / "heard").exists(), "what a child gets is not for its parent"
    assert worker.stop() == 0


@pytest.mark.parametrize("amid", PROGRAMS)
def test_stopped_from_another_thread_they_finish_and_give_back(
    running: Engine, start: Start, noted: Noted, open_gate: Callable[[], None], tmp_path: Path, amid: str
) -> None:
    quick = running.push_many([Task("quick") for _ in range(500)])
    worker = start(amid, processes=2, concurrency=2)
    # so that they hold some ahead when the slow ones come
    wait_until(lambda: len(noted("done")) == 500, "the quick ones are done", timeout=SOON_S)
    slow = set(running.push_many([Task("gate") for _ in range(50)]))
    wait_until(lambda: sum(note.id in slow for note in noted("begun")) == 4, "four slow ones run", timeout=SOON_S)
    worker.end()
    wait_until(lambda: len(sated(tmp_path)) == 2, "both claim no more", timeout=SOON_S)
    wait_until(lambda: counted(running).leased == 4, "the others are given back")
    assert worker.running
    open_gate()
    ends(worker)
    done = {note.id for note in noted("done")}
    assert len(done) == 504 == len(noted("begun"))
    assert set(quick) < done
    assert {delivery.attempt for delivery in claim(running.consumer(), 46)} == {1}


@pytest.mark.parametrize("amid", ["thread", "forks"])
def test_they_end_with_a_program_that_is_killed(
    running: Engine, start: Start, noted: Noted, open_gate: Callable[[], None], tmp_path: Path, amid: str
) -> None:
    """Also when it has another child, a fork, that lives on."""
    ids = running.push_many([Task("gate") for _ in range(4)])
    worker = start(amid, processes=2, concurrency=2)
    pids = busy(noted, 4)
    if amid == "forks":
        (tmp_path / "fork").touch()
        wait_until((tmp_path / "forked").exists, "the program has forked", timeout=SOON_S)
    ours = [child for child in children(worker) if child.pid in pids]
    worker.kill()
    open_gate()
    try:
        wait_until(lambda: all(gone(child) for child in ours), "they have ended", timeout=SOON_S)
    finally:
        if amid == "forks":
            os.kill(int((tmp_path / "stranger").read_text()), signal.SIGKILL)
    assert {note.id for note in noted("done")} == set(ids)
    assert {state_of(running, id) for id in ids} == {"gone"}


@pytest.mark.slow
@pytest.mark.parametrize("amid", ["ignores", "strangers"])
def test_a_child_that_is_killed_is_replaced(
    running: Engine, start: Start, noted: Noted, open_gate: Callable[[], None], tmp_path: Path, amid: str
) -> None:
    ids = running.push_many([Task("gate") for _ in range(4)])
    # so long that only the one that is killed loses its leases, and not another that stands still for a while
    worker = start(amid, processes=2, concurrency=2, lease=5.0)
    pids = busy(noted, 4)
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: {note.pid for note in noted("begun")} > pids, "another has taken over", timeout=SOON_S)
    open_gate()
    wait_until(lambda: {note.id for note in noted("done")} == set(ids), "all are done", timeout=SOON_S)
    assert f"worker process {victim} has ended" in logged(tmp_path)
    assert worker.stop() == 0


@pytest.mark.slow
def test_one_that_is_frozen_is_killed_in_the_end(running: Engine, start: Start, noted: Noted) -> None:
    running.push_many([Task("gate") for _ in range(4)])
    worker = start("main", processes=2, concurrency=2, grace=0.1)
    pids = busy(noted, 4)
    ours = [psutil.Process(pid) for pid in pids]
    os.kill(min(pids), signal.SIGSTOP)
    worker.end()
    ends(worker)
    assert all(gone(child) for child in ours)


@pytest.mark.slow
def test_those_that_die_at_their_start_are_started_less_and_less(running: Engine, start: Start, tmp_path: Path) -> None:
    worker = start("dies", processes=3)

    def forks() -> list[float]:
        file = tmp_path / "forks"
        return [float(line) for line in file.read_text().splitlines()] if file.exists() else []

    wait_until(lambda: len(forks()) > 6, "they were started three times", timeout=SOON_S)
    began = forks()
    assert began[3] - began[0] >= 1.0
    assert began[6] - began[3] >= 2.0
    assert worker.stop() == 0
    log = logged(tmp_path)
    assert "has ended with 3" in log
    assert "the next start is in 1 s" in log
    assert "the next start is in 2 s" in log


def test_sigterm_before_a_child_has_a_handler(running: Engine, start: Start, tmp_path: Path) -> None:
    """It is neither lost nor the child's death: that ends in good order."""
    worker = start("struck", processes=2)
    wait_until(lambda: logged(tmp_path).count("has ended") >= 2, "both have ended", timeout=SOON_S)
    assert re.findall(r"has ended (.*?)[;,]", logged(tmp_path))[:2] == ["in order", "in order"]
    assert worker.stop() == 0


def test_what_is_printed_before_is_printed_once(running: Engine, start: Start, noted: Noted) -> None:
    running.push("x")
    worker = start("prints", processes=3)
    wait_until(lambda: noted("done"), "they work", timeout=SOON_S)
    worker.end()
    assert [worker.said(), worker.said()] == ["once", ""]


def test_stdin_stdout_and_stderr_are_closed(
    running: Engine, url: str, name: str, noted: Noted, open_gate: Callable[[], None], tmp_path: Path
) -> None:
    ids = running.push_many([Task("gate") for _ in range(4)])
    text = msgspec.json.encode(Options(folder=str(tmp_path), processes=2, concurrency=2)).decode()
    words = [sys.executable, "-m", "tests.support.worker_programs", "main", url, name, text]
    program = subprocess.Popen(["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words])
    try:
        pids = busy(noted, 4)
        os.kill(program.pid, signal.SIGTERM)
        wait_until(lambda: sated(tmp_path) == pids, "they claim no more", timeout=SOON_S)
        open_gate()
        assert program.wait(SOON_S) == 0
    finally:
        program.kill()
        program.wait()
    assert {note.id for note in noted("done")} == set(ids)


@pytest.mark.parametrize("processes", [1, 2])
def test_under_nohup_a_closed_terminal_changes_nothing(
    running: Engine, start: Start, noted: Noted, processes: int
) -> None:
    running.push_many([Task("quick") for _ in range(10)])
    worker = start("nohup", processes=processes)
    wait_until(lambda: len(noted("done")) == 10, "they work", timeout=SOON_S)
    before = children(worker)
    os.killpg(worker.pid, signal.SIGHUP)
    running.push_many([Task("quick") for _ in range(10)])
    wait_until(lambda: len(noted("done")) == 20, "they work on", timeout=SOON_S)
    assert children(worker) == before
    assert worker.stop() == 0
