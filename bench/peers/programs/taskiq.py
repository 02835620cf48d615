"""taskiq with taskiq-redis: a list of schedules, a scheduler that looks every second, and a stream for due tasks.

Scheduler and receiver are one process, by the API that taskiq has for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import uvloop
from taskiq import TaskiqScheduler
from taskiq.api import run_receiver_task, run_scheduler_task
from taskiq_redis import ListRedisScheduleSource, RedisStreamBroker

from bench.peers.programs import kit

AT_ONCE = 50

broker = RedisStreamBroker(kit.url())
source = ListRedisScheduleSource(kit.url())
scheduler = TaskiqScheduler(broker, sources=[source])


async def _handle(payload: str) -> None:
    kit.handled(payload)


handle = broker.task(task_name="handle")(_handle)


async def push() -> None:
    await broker.startup()

    async def push_all(dues: Sequence[float]) -> None:
        whens = [(kit.payload(due), datetime.fromtimestamp(due, UTC)) for due in dues]
        await asyncio.gather(*[handle.schedule_by_time(source, when, payload) for payload, when in whens])

    await kit.serve(push_all, chunk=AT_ONCE)


async def work() -> None:
    broker.is_worker_process = True
    await broker.startup()
    second = timedelta(seconds=1)
    await asyncio.gather(
        run_receiver_task(broker, max_async_tasks=100),
        run_scheduler_task(scheduler, interval=second, loop_interval=second),
    )


if __name__ == "__main__":
    uvloop.install()
    asyncio.run(push() if kit.role() == "push" else work())
