"""Measures by the second how late tasks are handed out, while others load the engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import numpy as np

from shardq import Engine, ShardqError, Task
from tests.chaos.soaking.samples import Sample

TOPIC = "probe"

DELAY_S = 0.3

EVERY_S = 0.02


class Probe:
    """Pushes a task every now and then, and claims it, in two threads; a context manager."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._over = threading.Event()
        self._late_ms: list[float] = []
        self._threads = [threading.Thread(target=each, name="probe", daemon=True) for each in (self._push, self._claim)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _push(self) -> None:
        while not self._over.wait(EVERY_S):
            due_s = time.time() + DELAY_S
            try:
                self._engine.push_many([Task(due_s, at=due_s, topic=TOPIC)])
            except ShardqError:
                continue

    def _claim(self) -> None:
        consumer = self._engine.consumer(TOPIC)
        while not self._over.is_set():
            try:
                deliveries = consumer.claim(10, wait=1.0)
                now_s = time.time()
                self._late_ms += [(now_s - each.payload) * 1000 for each in deliveries]
                if deliveries:
                    consumer.ack(deliveries)
            except ShardqError:
                self._over.wait(0.1)

    def taken(self) -> Iterator[Sample]:
        """The lateness of those that came since this was asked last."""
        late_ms, self._late_ms = self._late_ms, []
        if late_ms:
            p50, p99 = np.percentile(late_ms, (50, 99))
            yield "lateness p50", "due → claimed", float(p50)
            yield "lateness p99", "due → claimed", float(p99)
