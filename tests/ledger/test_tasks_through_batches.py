"""The ledger of batches: with poison in one of a thousand, killed processes and a resize, every task is handled, or
dead because it is poisoned, and those beside it pay little.

``SHARDQ_LEDGER=1000000`` runs it with a million.
"""

from __future__ import annotations

import os
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from shardq import Engine, Task
from tests.support.batching import ATTEMPTS, done_in, is_poisoned
from tests.support.listed import listed
from tests.support.states import counted
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.ledger

TASKS = int(os.environ.get("SHARDQ_LEDGER", "30_000"))
SHARDS = 8
KILLS = 4
MOST_LOST = 3
"""The attempts that a task without poison may lose by those beside it."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_task_is_handled_or_poisoned(url: str, name: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS))
        engine.start()

        def start(number: int) -> Worker:
            flavour = "function" if number % 2 else "coroutine"
            return stack.enter_context(Worker("tests.support.batching", url, name, tmp_path, flavour, 1 + number))

        workers = [start(number) for number in range(2)]
        pushed = {id for ids in engine.push_iter(Task(n) for n in range(TASKS)) for id in ids}
        assert len(pushed) == TASKS
        resize = engine.resize(SHARDS * 2)
        for kill in range(KILLS):
            most_left = TASKS * (KILLS - kill) // (KILLS + 1)
            wait_until(partial(has_left, engine, most_left), f"{most_left} are left", timeout=600)
            victim = kill % 2
            workers[victim].kill()
            workers[victim] = start(victim)
        resize.wait(600)
        wait_until(lambda: left(engine) == 0, "every task has an end", timeout=600)
        for worker in workers:
            assert worker.stop() == 0
        dead = list(listed(engine, state="dead"))
        stats = counted(engine)

    assert (stats.scheduled, stats.ready, stats.leased) == (0, 0, 0)
    handled = Counter(done.number for done in done_in(tmp_path))
    poisoned = {number for number in range(TASKS) if is_poisoned(number)}
    assert handled.keys() == set(range(TASKS)) - poisoned, "each without poison was handled"
    assert sorted(task.payload for task in dead) == sorted(poisoned), "and each with poison is dead"
    assert {task.failures + task.lapses for task in dead} == {ATTEMPTS}
    lost = max(done.failures for done in done_in(tmp_path))
    assert lost <= MOST_LOST, "innocent tasks lose few attempts"
    # twice: only what a killed process had in hand, whose lease ran out
    again = [number for number, times in handled.items() if times > 1]
    assert len(again) <= KILLS * 3 * 500


def has_left(engine: Engine, most: int) -> bool:
    return left(engine) <= most


def left(engine: Engine) -> int:
    stats = counted(engine)
    return stats.scheduled + stats.ready + stats.leased
