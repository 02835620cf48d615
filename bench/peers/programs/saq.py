"""SAQ: ``enqueue`` fifty at a time; a worker of a hundred jobs at once.

Its due times are whole seconds. Tasks are therefore due at whole seconds, and lateness counts from those.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import saq
import uvloop

from bench.peers.programs import kit

AT_ONCE = 50


async def handle(context: dict[str, Any], *, payload: str) -> None:
    kit.handled(payload)


async def push() -> None:
    queue = saq.Queue.from_url(kit.url())
    await queue.connect()

    async def push_all(dues: Sequence[float]) -> None:
        seconds = [math.ceil(due) for due in dues]
        await asyncio.gather(
            *[queue.enqueue("handle", payload=kit.payload(second), scheduled=second, ttl=-1) for second in seconds]
        )

    await kit.serve(push_all, chunk=AT_ONCE)


async def work() -> None:
    queue = saq.Queue.from_url(kit.url())
    await queue.connect()
    await saq.Worker(queue, functions=[("handle", handle)], concurrency=100).start()


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(push() if kit.role() == "push" else work())
