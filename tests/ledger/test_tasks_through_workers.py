"""The ledger of the way out: every task ends acknowledged or dead, whatever becomes of the workers.

20,000 tasks go through workers in four processes, two with functions and two with coroutines. Handlers take up to
50 ms and one in twenty fails. After each eighth of the tasks one process is killed and replaced: what it held comes
back when its leases run out. Each begin and end of a handler is noted in a file as it happens; in the end every second
delivery must have its reason there: the attempt before it failed, or its process was killed.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from shardq import Engine, Task, TaskInfo
from tests.support.listed import listed
from tests.support.servers import Servers
from tests.support.states import counted
from tests.support.traffic import unfinished
from tests.support.waiting import wait_until
from tests.support.workers import Worker
from tests.support.working import Note, Options, notes

pytestmark = pytest.mark.ledger

TASKS = 20_000
SHARDS = 16
ATTEMPTS = 3
LOST = "lost with its worker"
KILL_EVERY = TASKS // 8

OPTIONS = {
    "concurrency": 64,
    "lease": 6.0,  # not so short that one lapses because its process stood still for a while
    "max_attempts": ATTEMPTS,
    "most_s": 0.05,
    "fails": 0.05,
}


class Fleet:
    """Four worker processes; whoever is killed is replaced."""

    def __init__(self, stack: ExitStack, url: str, name: str, folder: Path) -> None:
        self.killed: set[int] = set()
        self._stack = stack
        self._url = url
        self._name = name
        self._folder = folder
        self._workers = [self._start(number) for number in range(4)]
        self._victim = 0

    def _start(self, number: int) -> Worker:
        options = Options(folder=str(self._folder), flavour="function" if number % 2 else "coroutine", **OPTIONS)  # type: ignore[arg-type]  # as their names say
        text = msgspec.json.encode(options).decode()
        return self._stack.enter_context(Worker("tests.support.working", self._url, self._name, text))

    def lose_one(self) -> None:
        victim = self._workers[self._victim]
        assert victim.running, "a worker has ended by itself"
        victim.kill()
        self.killed.add(victim.pid)
        self._workers[self._victim] = self._start(self._victim)
        self._victim = (self._victim + 1) % 4

    def stop(self) -> None:
        for worker in self._workers:
            assert worker.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_every_task_ends_acknowledged_or_dead(url: str, name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS))
        servers = stack.enter_context(Servers(url))
        engine.start()
        fleet = Fleet(stack, url, name, tmp_path)
        pushed = {id for ids in engine.push_iter(Task(n) for n in range(TASKS)) for id in ids}
        assert len(pushed) == TASKS
        kill_at = TASKS - KILL_EVERY

        def all_ended() -> bool:
            nonlocal kill_at
            left = unfinished(servers, name, SHARDS)
            while left <= kill_at and kill_at:
                fleet.lose_one()
                kill_at -= KILL_EVERY
            return left == 0

        wait_until(all_ended, "every task is acknowledged or dead", timeout=500)
        fleet.stop()
        dead = {task.id: task for task in listed(engine, state="dead")}
        stats = counted(engine)

    assert len(fleet.killed) == 7
    assert (stats.scheduled, stats.ready, stats.leased) == (0, 0, 0)
    assert stats.dead == len(dead)
    by_id: defaultdict[str, list[Note]] = defaultdict(list)
    for note in notes(tmp_path):
        by_id[note.id].append(note)
    assert set(by_id) <= pushed
    lost = [id for id in pushed if id not in dead and not any(note.kind == "done" for note in by_id[id])]
    assert lost == []
    unfounded = {id: story for id, story in by_id.items() if not founded(story, fleet.killed)}
    assert unfounded == {}
    wrong = {id: task for id, task in dead.items() if not told_apart(task, by_id[id])}
    assert wrong == {}
    # what the killed processes held did come back, and no more than they can have held
    reaped = sum(shard.reaped or 0 for shard in stats.shards)
    assert 0 < reaped <= len(fleet.killed) * 2000


def founded(story: list[Note], killed: set[int]) -> bool:
    """Whether no attempt was begun twice, and each that another followed had failed, or was in a killed process."""
    begun = sorted((note for note in story if note.kind == "begun"), key=lambda note: note.attempt)
    failed = {note.attempt for note in story if note.kind == "failed"}
    attempts = [note.attempt for note in begun]
    if len(set(attempts)) < len(attempts):
        return False
    return all(note.attempt in failed or note.pid in killed for note in begun[:-1])


def told_apart(task: TaskInfo, story: list[Note]) -> bool:
    """Whether a dead task's failures and lost leases add up to its attempts and to what is known of it."""
    failed = sum(note.kind == "failed" for note in story)
    # the last attempt decides what it is called
    return (
        (str(task.reason).endswith("ValueError: by chance") or (task.reason == LOST and task.lapses > 0))
        and task.failures + task.lapses == ATTEMPTS
        # a failure whose process was killed before it could say so is a lost lease
        and task.failures <= failed <= task.failures + task.lapses
    )
