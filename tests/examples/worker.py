"""A worker: functions and coroutine functions that are pushed by name, and a topic of its own, until Ctrl-C.

    python tests/examples/worker.py

The server is $SHARDQ_URL; without it, an embedded one that keeps its data in your data directory. Another program may
import this one and push: `worker.send.push("ann@example.org", "hello")`.
"""

import asyncio

import shardq

engine = shardq.Engine(name="example-worker", shards=4)


@engine.task(topic="mail")
async def send(to: str, text: str) -> None:
    await asyncio.sleep(0.1)  # your mail server
    print(f"mail to {to}: {text}")


@engine.task(topic="pictures", timeout=60)
def shrink(picture: str, *, width: int) -> None:
    print(f"{picture} is {width} pixels wide")


worker = engine.worker(concurrency=8)  # functions run on threads, coroutine functions on an event loop


@worker.on("invoice", max_attempts=3)
def invoice(delivery: shardq.Delivery) -> None:
    if delivery.attempt == 1:
        raise shardq.Retry(delay=0.5)  # any other exception is retried, too: later and later
    print(f"invoice of order {delivery.payload['order']}, attempt {delivery.attempt}")


def main() -> None:
    with engine:
        engine.start()  # this process moves due tasks, too
        send.push("ann@example.org", "thank you")
        send.options(delay=1).push("ann@example.org", "how do you like it?")
        shrink.options(id="cat-320", dedup=60).push("cat.jpg", width=320)
        shrink.options(id="cat-320", dedup=60).push("cat.jpg", width=320)  # the same id: done once
        engine.push({"order": 42}, topic="invoice")
        worker.run()  # until Ctrl-C or SIGTERM: what runs is finished, the rest given back
    print("stopped")


if __name__ == "__main__":
    main()
