"""A program that takes a stream: ``python -m tests.support.streaming URL NAME sync|asyncio FILE``.

It writes the id of each task to the file before it acks it, and works until it is killed.
"""

from __future__ import annotations

import asyncio
import os
import sys

from shardq import AsyncEngine, Delivery, Engine
from tests.support.workers import say

AT_ONCE = 5
LEASE_S = 2.0


class Notes:
    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def take(self, deliveries: list[Delivery]) -> None:
        os.write(self._file, "".join(f"{delivery.id}\n" for delivery in deliveries).encode())


def threads(url: str, name: str, notes: Notes) -> None:
    with Engine(url, name=name) as engine:
        consumer = engine.consumer(prefetch=True, lease=LEASE_S)
        say("ready")
        while True:
            deliveries = consumer.claim(AT_ONCE, wait=1.0)
            notes.take(deliveries)
            consumer.ack(deliveries)


async def loop(url: str, name: str, notes: Notes) -> None:
    async with AsyncEngine(url, name=name) as engine:
        consumer = engine.consumer(prefetch=True, lease=LEASE_S)
        say("ready")
        while True:
            deliveries = await consumer.claim(AT_ONCE, wait=1.0)
            notes.take(deliveries)
            await consumer.ack(deliveries)


if __name__ == "__main__":
    url, name, flavour, file = sys.argv[1:]
    if flavour == "sync":
        threads(url, name, Notes(file))
    else:
        asyncio.run(loop(url, name, Notes(file)))
