"""A program that takes a stream: ``python -m tests.support.streaming URL NAME sync|asyncio FILE AT_ONCE``.

It writes the id of each task to the file before it acks it, works for some milliseconds on what it has claimed, and
goes on until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time

from shardq import AsyncEngine, Delivery, Engine
from tests.support.workers import say

LEASE_S = 2.0
WORK_S = 0.003


class Notes:
    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def take(self, deliveries: list[Delivery]) -> None:
        os.write(self._file, "".join(f"{delivery.id}\n" for delivery in deliveries).encode())


def threads(url: str, name: str, notes: Notes, at_once: int) -> None:
    with Engine(url, name=name) as engine:
        consumer = engine.consumer(prefetch=True, lease=LEASE_S)
        say("ready")
        while True:
            deliveries = consumer.claim(at_once, wait=1.0)
            notes.take(deliveries)
            time.sleep(WORK_S)
            consumer.ack(deliveries)


async def loop(url: str, name: str, notes: Notes, at_once: int) -> None:
    async with AsyncEngine(url, name=name) as engine:
        consumer = engine.consumer(prefetch=True, lease=LEASE_S)
        say("ready")
        while True:
            deliveries = await consumer.claim(at_once, wait=1.0)
            notes.take(deliveries)
            await asyncio.sleep(WORK_S)
            await consumer.ack(deliveries)


if __name__ == "__main__":
    url, name, flavour, file, at_once = sys.argv[1:]
    if flavour == "sync":
        threads(url, name, Notes(file), int(at_once))
    else:
        asyncio.run(loop(url, name, Notes(file), int(at_once)))
