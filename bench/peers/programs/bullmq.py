"""BullMQ in Python: ``addBulk``; a worker of a hundred jobs at once."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import bullmq

from bench.peers.programs import kit


async def handle(job: Any, token: str) -> None:
    kit.handled(job.data)


async def push() -> None:
    queue = bullmq.Queue("peers", {"connection": kit.url()})

    async def push_all(dues: Sequence[float]) -> None:
        now = time.time()
        await queue.addBulk(
            [
                {
                    "name": "handle",
                    "data": kit.payload(due),
                    "opts": {"delay": max(0, math.ceil((due - now) * 1000)), "removeOnComplete": True},
                }
                for due in dues
            ]
        )

    await kit.serve(push_all, chunk=500)


async def work() -> None:
    bullmq.Worker("peers", handle, {"connection": kit.url(), "concurrency": 100})
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(push() if kit.role() == "push" else work())
