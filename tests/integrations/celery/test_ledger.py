"""A dispatcher and the children of a worker are killed while tasks fall due: each task has run, and was delivered once
by shardq.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import psutil
import pytest

from cluster.server import Server
from tests.integrations.celery.conftest import Make
from tests.support.waiting import wait_until
from tests.support.workers import Worker

TASKS = 120


@pytest.mark.slow
@pytest.mark.ledger
def test_killed_dispatchers_and_workers(make: Make, single: Server, name: str) -> None:
    """With acks_late Celery runs again what a killed child held; those messages say that they are redelivered. (The
    parent is spared: what it has popped from Redis and not noted yet is lost with it, with shardq and without.)
    """
    stand, module = make(dispatching=False)
    with Worker("tests.support.dispatching", single.url, name, 4) as second:
        assert second.said()
        first = Worker("tests.support.dispatching", single.url, name, 4)
        with first, stand.worker("--pool=prefork", "-c2") as worker:
            assert first.said()
            sent = {module.slowly.apply_async((n,), countdown=0.8 + n * 0.02).id for n in range(TASKS)}
            stand.wait(TASKS // 6)
            first.kill()
            stand.wait(TASKS // 3)
            for child in psutil.Process(worker.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
            wait_until(lambda: set(stand.ids()) == sent, "every task has run", timeout=90)
            runs = stand.runs()
    first_deliveries = Counter(run["id"] for run in runs if not run["info"].get("redelivered"))
    assert max(first_deliveries.values()) == 1
    assert left_in(module) == 0


def left_in(module: Any) -> int:
    stats = module.engine.stats()
    return int(stats.scheduled + stats.ready + stats.leased + stats.dead)
