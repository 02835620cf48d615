"""Worker processes that are stopped, killed or frozen, alone and several at once, lose no task."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from shardq import Engine, Task
from tests.support.listed import listed
from tests.support.states import claim, counted, state_of
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Start, ends, gone
from tests.support.working import Note, logged, sated


@pytest.fixture
def running(url: str, name: str) -> Iterator[Engine]:
    # one shard: tasks come in the order in which they became ready
    with Engine(url, name=name, shards=1) as engine:
        engine.start()
        yield engine


@pytest.mark.parametrize(
    ("url", "flavour", "number"),
    [
        ("single", "function", signal.SIGTERM),
        ("single", "coroutine", signal.SIGHUP),
        ("cluster", "function", signal.SIGINT),
        ("cluster", "coroutine", signal.SIGTERM),
    ],
    indirect=["url"],
)
def test_told_to_stop_it_finishes_and_gives_back(
    running: Engine,
    start: Start,
    noted: Callable[[str], list[Note]],
    open_gate: Callable[[], None],
    tmp_path: Path,
    flavour: str,
    number: signal.Signals,
) -> None:
    # quick ones first, so that it holds some ahead when the slow ones come
    quick = running.push_many([Task("quick") for _ in range(1000)])
    wait_until(lambda: counted(running).ready == 1000, "the quick ones are ready")
    worker = start(concurrency=4, flavour=flavour)
    # all of them: what a worker that stood still gives back comes again behind everything else
    wait_until(lambda: len(noted("done")) == 1000, "the quick ones are done", timeout=SOON_S)
    slow = set(running.push_many([Task("gate") for _ in range(100)]))
    wait_until(lambda: sum(note.id in slow for note in noted("begun")) == 4, "four slow ones run", timeout=SOON_S)
    os.kill(worker.pid, number)
    wait_until(lambda: sated(tmp_path), "it claims no more", timeout=SOON_S)
    wait_until(lambda: counted(running).leased == 4, "the others are given back")
    assert worker.running
    open_gate()
    ends(worker)
    stats = counted(running)
    assert (stats.leased, stats.dead, sum(shard.reaped or 0 for shard in stats.shards)) == (0, 0, 0)
    done = {note.id for note in noted("done")}
    assert set(quick) <= done
    assert len(done) == 1004 == len(noted("begun"))
    left = claim(running.consumer(), 96)
    assert {delivery.attempt for delivery in left} == {1}


def test_when_its_grace_is_over_it_ends(running: Engine, start: Start, noted: Callable[[str], list[Note]]) -> None:
    id = running.push("gate")
    worker = start(grace=0.3)
    wait_until(lambda: noted("begun"), "it runs", timeout=SOON_S)
    os.kill(worker.pid, signal.SIGTERM)
    ends(worker)
    wait_until(lambda: state_of(running, id) == "ready", "the task is given back")
    assert running.consumer().claim(1)[0].attempt == 1


@pytest.mark.parametrize("flavour", ["function", "coroutine"])
def test_processes_snooze_tasks_without_an_attempt(
    running: Engine, start: Start, noted: Callable[[str], list[Note]], open_gate: Callable[[], None], flavour: str
) -> None:
    ids = running.push_many([Task("snooze", max_attempts=1) for _ in range(8)])
    worker = start(processes=2, concurrency=2, flavour=flavour)
    wait_until(lambda: len(noted("snoozed")) >= 4 * len(ids), "all come again and again", timeout=SOON_S)
    open_gate()
    wait_until(lambda: {note.id for note in noted("done")} == set(ids), "all are done", timeout=SOON_S)
    assert {note.attempt for note in noted("begun")} == {1}
    assert noted("failed") == []
    os.kill(worker.pid, signal.SIGTERM)
    ends(worker)


@pytest.mark.slow
def test_several_processes(
    running: Engine, start: Start, noted: Callable[[str], list[Note]], open_gate: Callable[[], None]
) -> None:
    """Both work; one that is killed is replaced, and what it held comes again; they end together."""
    ids = running.push_many([Task("gate") for _ in range(4)])
    # so long that only the one that is killed loses its leases, and not another that stands still for a while
    worker = start(processes=2, concurrency=2, lease=5.0)
    wait_until(lambda: len(noted("begun")) == 4, "all run", timeout=SOON_S)
    pids = {note.pid for note in noted("begun")}
    assert len(pids) == 2
    children = psutil.Process(worker.pid).children()
    assert {child.pid for child in children} == pids
    victim = min(pids)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len({note.pid for note in noted("begun")}) == 3, "another has taken over", timeout=SOON_S)
    open_gate()
    wait_until(lambda: {note.id for note in noted("done")} == set(ids), "all are done", timeout=SOON_S)
    again = [note for note in noted("done") if note.attempt == 2]
    assert len(again) == 2
    assert {note.pid for note in noted("begun") if note.id in {note.id for note in again} and note.attempt == 1} == {
        victim
    }
    children = psutil.Process(worker.pid).children()
    os.kill(worker.pid, signal.SIGTERM)
    ends(worker)
    assert all(gone(child) for child in children)
    assert {state_of(running, id) for id in ids} == {"gone"}


@pytest.mark.slow
def test_a_task_that_takes_its_worker_along_has_no_more_attempts_than_others(
    running: Engine, start: Start, noted: Callable[[str], list[Note]]
) -> None:
    id = running.push("gate")
    for attempt in (1, 2):
        worker = start(lease=1.0, concurrency=1, max_attempts=2)
        # a worker that stands still loses its lease before it is killed: that takes an attempt, and may be the last
        wait_until(lambda: len(noted("begun")) >= attempt or counted(running).dead, "it runs", timeout=SOON_S)  # noqa: B023  called at once
        worker.kill()
    wait_until(lambda: counted(running).dead == 1, "it is dead, by the worker's limit", timeout=SOON_S)
    (task,) = listed(running, state="dead")
    assert (task.id, task.reason, task.failures, task.lapses) == (id, "lost with its worker", 0, 2)
    assert sorted(note.attempt for note in noted("begun")) in ([1, 2], [1], [2])


@pytest.mark.slow
def test_a_worker_frozen_past_its_lease_can_not_finish_what_another_has(
    running: Engine,
    start: Start,
    noted: Callable[[str], list[Note]],
    open_gate: Callable[[], None],
    tmp_path: Path,
) -> None:
    id = running.push("gate")
    # with its only place taken it waits for nothing, so that no wake-up goes to a process that can't hear it
    frozen = start(lease=1.0, concurrency=1)
    wait_until(lambda: noted("begun"), "it runs", timeout=SOON_S)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        (delivery,) = claim(running.consumer(lease=600), 1)
        # more than once, if it stood still before we stopped it
        assert delivery.lapses >= 1
        assert (delivery.id, delivery.attempt, delivery.failures) == (id, delivery.lapses + 1, 0)
        open_gate()
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    wait_until(lambda: noted("done"), "its handler returns", timeout=SOON_S)
    wait_until(lambda: "lease of 1 task was lost" in logged(tmp_path), "its ack is refused", timeout=SOON_S)
    assert state_of(running, id) == "leased"
    running.consumer().ack(delivery)
    assert state_of(running, id) == "gone"
    assert counted(running).dead == 0


@pytest.mark.parametrize(("url", "flavour"), [("single", "function"), ("cluster", "coroutine")], indirect=["url"])
def test_prefetch_does_not_hoard(
    running: Engine, start: Start, noted: Callable[[str], list[Note]], open_gate: Callable[[], None], flavour: str
) -> None:
    """Quick handlers teach it to hold some ahead; when they turn slow it does not keep the rest from an idle one."""
    running.push_many([Task("quick") for _ in range(2000)])
    wait_until(lambda: counted(running).ready == 2000, "the quick ones are ready")
    start(concurrency=1, flavour=flavour)
    # all of them: what a worker that stood still gives back comes again behind everything else
    wait_until(lambda: len(noted("done")) == 2000, "the quick ones are done", timeout=SOON_S)
    slow = set(running.push_many([Task("gate") for _ in range(20)]))
    wait_until(lambda: any(note.id in slow for note in noted("begun")), "a slow one runs", timeout=SOON_S)
    # it would keep them for as long as the gate is closed
    given = {delivery.id for delivery in claim(running.consumer(), 19)}
    assert given < slow
    open_gate()
