"""docket: ``add_many``; a worker of eighty tasks at once.

Each running task takes a connection, and the client has a hundred: more tasks at once fail because no connection is
free. When all eighty run, the worker sleeps for ``minimum_check_interval``, which is the default of its command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import docket

from bench.peers.programs import kit

INTERVAL = timedelta(milliseconds=100)


async def handle(payload: str) -> None:
    kit.handled(payload)


async def main() -> None:
    async with docket.Docket(name="peers", url=kit.url(), execution_ttl=timedelta(0)) as queue:
        queue.register(handle)

        async def push_all(dues: Sequence[float]) -> None:
            calls = [queue.call(handle, when=datetime.fromtimestamp(due, UTC))(kit.payload(due)) for due in dues]
            await queue.add_many(calls)

        if kit.role() == "push":
            await kit.serve(push_all, chunk=1000)
        else:
            async with docket.Worker(queue, concurrency=80, minimum_check_interval=INTERVAL) as worker:
                await worker.run_forever()


if __name__ == "__main__":
    asyncio.run(main())
