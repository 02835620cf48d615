"""A limit costs the same whatever the number of consumers and shards. Counted are the scripts that servers run for a
handled task, over a backlog.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.core.layout.keys import control_keys
from tests.support.engines import Engines
from tests.support.states import make_ready
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

MOST_SCRIPTS = 9.0  # about 4 on a quiet machine, and up to 6.4 beside other tests; before the mend 30 to 1,300
"""Scripts a handled task."""

BACKLOG = 2000
BEGUN, HANDLED = 300, 400


class Crowd:
    """Consumers that claim and ack one task at a time, as threads of these engines in turns."""

    def __init__(self, engines: list[Engine], consumers: int) -> None:
        self._stopped = threading.Event()
        self._done = [0] * consumers
        self._held = 0
        self.most_held = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(engines[n % len(engines)], n)) for n in range(consumers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def done(self) -> int:
        return sum(self._done)

    def _run(self, engine: Engine, number: int) -> None:
        consumer = engine.consumer("mail")
        while not self._stopped.is_set():
            for delivery in consumer.claim(1, wait=2.0):
                with self._lock:
                    self._held += 1
                    self.most_held = max(self.most_held, self._held)
                time.sleep(0)  # others may overtake
                with self._lock:
                    self._held -= 1
                consumer.ack(delivery)
                self._done[number] += 1

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def opened(
    engines: Engines, single: Server, name: str, shards: int, processes: int, limit: dict[str, Any]
) -> list[Engine]:
    """Engines that stand for processes, over a backlog of a limited topic."""
    first = engines.opened(single.url, name=name, shards=shards)
    first.start()
    first.limit("mail", **limit)
    make_ready(first, BACKLOG)
    # no dispatcher runs from here on: every script counted is one of the consumers
    first.close()
    return [engines.opened(single.url, name=name) for _ in range(processes)]


def scripts(single: Server) -> int:
    return int(single.ask("INFO", "commandstats")["cmdstat_evalsha"]["calls"])


def cost(single: Server, engines: list[Engine], consumers: int) -> tuple[float, int]:
    """Scripts a task, and the most tasks that were held at once."""
    crowd = Crowd(engines, consumers)
    try:
        wait_until(lambda: crowd.done >= BEGUN, "each process has learnt where tasks are", timeout=60)
        before, done = scripts(single), crowd.done
        wait_until(lambda: crowd.done - done >= HANDLED, "tasks are handled", timeout=60)
        return (scripts(single) - before) / (crowd.done - done), crowd.most_held
    finally:
        crowd.stop()


@pytest.mark.parametrize(
    ("limit", "shards", "processes", "consumers"),
    [
        ({"concurrency": 1}, 64, 1, 1),
        ({"concurrency": 1}, 64, 10, 50),
        ({"concurrency": 20}, 64, 10, 50),
        ({"rate": 200}, 64, 10, 50),
        ({"rate": 200, "concurrency": 20}, 64, 1, 50),
    ],
)
def test_a_task_costs_the_same_whoever_waits(
    engines: Engines, single: Server, name: str, limit: dict[str, int], shards: int, processes: int, consumers: int
) -> None:
    made = opened(engines, single, name, shards, processes, limit)
    scripts_a_task, most_held = cost(single, made, consumers)
    assert scripts_a_task <= MOST_SCRIPTS
    assert most_held <= limit.get("concurrency", consumers)


def test_who_is_denied_asks_nobody(engines: Engines, single: Server, name: str) -> None:
    """One that can't have a permit for an hour costs next to nothing, however many wait."""
    (engine,) = opened(engines, single, name, 64, 1, {"concurrency": 1})
    holder = engine.consumer("mail", lease=600.0)
    wait_until(lambda: holder.claim(1), "the only permit is taken")
    crowd = Crowd([engine], 50)
    try:
        keys = control_keys(name)
        wait_until(lambda: single.ask("ZCARD", keys.waiting("mail")), "they wait")
        before, began = scripts(single), time.monotonic()
        wait_until(lambda: time.monotonic() - began > 4.0, "a while")
        assert scripts(single) - before < 60  # 66,840 before the mend
    finally:
        crowd.stop()
