"""arq: ``enqueue_job`` fifty at a time on a pool; a worker of a hundred jobs at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import arq
import uvloop
from arq.connections import RedisSettings
from arq.worker import Worker, func

from bench.peers.programs import kit

AT_ONCE = 50

settings = RedisSettings.from_dsn(kit.url())


async def handle(context: dict[Any, Any], payload: str) -> None:
    kit.handled(payload)


async def push() -> None:
    pool = await arq.create_pool(settings)

    async def push_all(dues: Sequence[float]) -> None:
        whens = [(kit.payload(due), datetime.fromtimestamp(due, UTC)) for due in dues]
        await asyncio.gather(*[pool.enqueue_job("handle", payload, _defer_until=when) for payload, when in whens])

    await kit.serve(push_all, chunk=AT_ONCE)


if __name__ == "__main__":
    uvloop.install()
    if kit.role() == "push":
        asyncio.run(push())
    else:
        asyncio.set_event_loop(asyncio.new_event_loop())
        Worker([func(handle, name="handle")], redis_settings=settings, max_jobs=100, keep_result=0).run()
