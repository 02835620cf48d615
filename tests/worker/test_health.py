"""When a worker says that it is healthy."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from shardq import Engine
from shardq.worker.report import Reporter
from tests.support.engines import Engines
from tests.support.waiting import wait_until


def test_healthy_only_while_it_runs(engines: Engines, running: Engine) -> None:
    worker = running.worker()
    worker.on("")(print)
    assert not worker.healthy
    with engines.working(worker):
        wait_until(lambda: worker.healthy, "it runs")
    assert not worker.healthy
    assert running.health().ok


def test_healthy_for_the_first_handler(engines: Engines, running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may run before the worker's last thread has begun."""
    seen: list[bool] = []
    monkeypatch.setattr(Reporter, "start", lambda self: wait_until(lambda: seen, "a handler has run"))
    worker = running.worker()
    worker.on("")(lambda delivery: seen.append(worker.healthy))
    running.push(1)
    with engines.working(worker):
        wait_until(lambda: seen, "a handler has run")
    assert seen == [True]


@pytest.mark.parametrize("duty", ["shardq-settle", "shardq-watch"])
def test_not_healthy_without_one_of_its_threads(engines: Engines, running: Engine, duty: str) -> None:
    """Nothing known ends one of them. Here it is told that the worker has ended, and the worker is not."""
    worker: Any = running.worker()
    worker.on("")(print)
    with engines.working(worker):
        wait_until(lambda: duty in {thread.name for thread in threading.enumerate()}, "it runs")
        assert worker.healthy
        worker._at_work._in_flight.end()
        wait_until(lambda: not worker.healthy, "it says so")
        assert not running.health().ok
    assert running.health().ok
