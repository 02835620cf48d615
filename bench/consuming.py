"""Taking a backlog, in this process: by one consumer, or by a worker whose handlers do nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bench.stand import Stand
from shardq import Delivery, Engine, Worker

CLAIM = 500
"""Tasks at a time."""


def claim_and_ack(engine: Engine, count: int) -> None:
    consumer = engine.consumer()
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


def running(stand: Stand, register: Callable[[Worker], None]) -> Callable[[Engine, int], None]:
    def run(engine: Engine, count: int) -> None:
        worker = engine.worker()
        register(worker)
        thread = threading.Thread(target=worker.run, name="worker")
        thread.start()
        try:
            # its record goes when a task is acknowledged
            stand.until_gone(engine, lambda keys: keys.task)
        finally:
            worker.stop()
            thread.join()

    return run
