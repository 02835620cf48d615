"""ardiq: ``enqueue_many``; a worker of a hundred tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import ardiq

from bench.peers.programs import kit

app = ardiq.Ardiq(redis_url=kit.url(), queue_name="peers", concurrency=100)


async def _handle(payload: str) -> None:
    kit.handled(payload)


handle = app.task(name="handle")(_handle)


async def push_all(dues: Sequence[float]) -> None:
    await app.enqueue_many([handle.options(schedule_ms=round(due * 1000)).prepare(kit.payload(due)) for due in dues])


if __name__ == "__main__":
    asyncio.run(kit.serve(push_all, chunk=1000) if kit.role() == "push" else app.run())
