"""streaq: ``enqueue_many``; a worker of 32 tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime

import streaq

from bench.peers.programs import kit

worker = streaq.Worker(redis_url=kit.url(), queue_name="peers", concurrency=32)


async def _handle(payload: str) -> None:
    kit.handled(payload)


handle = worker.task(name="handle", ttl=0, silent=True)(_handle)


async def push() -> None:
    async with worker:

        async def push_all(dues: Sequence[float]) -> None:
            await worker.enqueue_many(
                [handle.enqueue(kit.payload(due)).start(schedule=datetime.fromtimestamp(due, UTC)) for due in dues]
            )

        await kit.serve(push_all, chunk=1000)


if __name__ == "__main__":
    if kit.role() == "push":
        asyncio.run(push())
    else:
        worker.run_sync()
