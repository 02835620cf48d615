"""A backlog is taken in this process: by one consumer, or by a worker whose handlers do nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from bench.stand import Stand
from shardq import Batch, Consumer, Delivery, Engine, Worker

CLAIM = 500
"""The number of tasks in one claim."""


def claim_and_ack(engine: Engine, count: int) -> None:
    """Takes a backlog as consumers do by default: each claim and each ack waits for the server."""
    _taken(engine.consumer(), count)


def claim_ahead_and_ack(engine: Engine, count: int) -> None:
    """With ``prefetch=True``: the next claim is under way meanwhile."""
    _taken(engine.consumer(prefetch=True), count)


def _taken(consumer: Consumer, count: int) -> None:
    while count > 0:
        deliveries = consumer.claim(CLAIM)
        consumer.ack(deliveries)
        count -= len(deliveries)


def function(worker: Worker) -> None:
    @worker.on("")
    def handle(delivery: Delivery) -> None:
        pass


def coroutine(worker: Worker) -> None:
    @worker.on("")
    async def handle(delivery: Delivery) -> None:
        pass


def batches(worker: Worker) -> None:
    @worker.on("", batch=CLAIM, concurrency=2)
    def handle(batch: Batch[Any]) -> None:
        pass


@contextlib.contextmanager
def working(worker: Worker) -> Iterator[None]:
    """Runs a worker in a thread, and stops it."""
    thread = threading.Thread(target=worker.run, name="worker")
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        thread.join()


def running(stand: Stand, register: Callable[[Worker], None]) -> Callable[[Engine, int], None]:
    """Returns a function that takes a whole backlog with one worker."""

    def run(engine: Engine, count: int) -> None:
        worker = engine.worker()
        register(worker)
        with working(worker):
            # the record of a task goes when it is acknowledged
            stand.until_gone(engine, lambda keys: keys.task)

    return run
