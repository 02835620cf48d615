"""A limit costs the same whatever the number of consumers, processes and shards. Counted are the scripts that servers run
for a handled task, over a backlog.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest

from cluster.server import Server
from shardq import Engine
from tests.support.states import make_ready
from tests.support.waiting import wait_until

MOST_SCRIPTS = 6.0
"""Scripts a handled task."""

BACKLOG = 2000
HANDLED = 100


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
                with self._lock:
                    self._held -= 1
                consumer.ack(delivery)
                self._done[number] += 1

    def stop(self) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def limited(single: Server, name: str, shards: int, processes: int, **limit: float) -> Iterator[list[Engine]]:
    with contextlib.ExitStack() as stack:
        with Engine(single.url, name=name, shards=shards) as first:
            first.start()
            first.limit("mail", **limit)
            make_ready(first, BACKLOG)
        # no dispatcher runs from here on: every script counted is one of the consumers
        yield [stack.enter_context(Engine(single.url, name=name)) for _ in range(processes)]


def scripts(single: Server) -> int:
    return int(single.ask("INFO", "commandstats")["cmdstat_evalsha"]["calls"])


def cost(single: Server, engines: list[Engine], consumers: int, handled: int) -> tuple[float, float, int]:
    """Scripts a task, tasks a second, and the most tasks that were held at once."""
    crowd = Crowd(engines, consumers)
    try:
        wait_until(lambda: crowd.done >= 2 * consumers or crowd.done > 20, "they have begun", timeout=120)
        before, done, began = scripts(single), crowd.done, time.monotonic()
        wait_until(lambda: crowd.done - done >= handled, "tasks are handled", timeout=120)
        took = time.monotonic() - began
        return (scripts(single) - before) / (crowd.done - done), (crowd.done - done) / took, crowd.most_held
    finally:
        crowd.stop()
