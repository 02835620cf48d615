"""The tasks of a shop: what `shardq work shopapp:worker` runs in the container. Put your own module in its place."""

import os

import shardq

engine = shardq.Engine(name=os.environ["SHARDQ_NAME"])  # the server is $SHARDQ_URL


@engine.task(topic="mail")
def send(to: str, text: str) -> None:
    print(f"mail to {to}: {text}", flush=True)


worker = engine.worker(concurrency=32)
