"""asyncio: a program that pushes reminders and handles them, until Ctrl-C.

    python tests/examples/coroutines.py

The server is $SHARDQ_URL; without it, an embedded one that keeps its data in your data directory.
"""

import asyncio
import contextlib

import shardq


async def remind(engine: shardq.AsyncEngine, number: int) -> None:
    """Handles reminders, one after the other. Each is acked when the loop comes back for the next."""
    async for delivery in engine.consumer():
        await asyncio.sleep(0.05)  # what your service does
        print(f"consumer {number}: {delivery.payload['text']}")


async def main() -> None:
    async with shardq.AsyncEngine(name="example-coroutines", shards=4) as engine:
        await engine.start()  # this process moves due tasks, too
        async with asyncio.TaskGroup() as group:
            for number in (1, 2):
                group.create_task(remind(engine, number))

            # one by one, or many in one trip
            await engine.push({"text": "tea is ready"}, delay=0.5)
            await engine.push_many([shardq.Task({"text": f"lap {lap}"}, delay=lap / 5) for lap in range(1, 6)])

            # a task can be moved or taken back as long as nobody has it
            meeting = await engine.push({"text": "the meeting begins"}, delay=3600)
            print("rescheduled:", bool(await engine.reschedule(meeting, delay=1.5)))
            lunch = await engine.push({"text": "lunch"}, delay=3600)
            print("cancelled:", bool(await engine.cancel(lunch)))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main())
    print("stopped")
