"""The tasks of a shop: what `shardq work shopapp:worker` runs in the container. Put your own module in its place."""

import shardq

engine = shardq.Engine()  # $SHARDQ_URL; the name is $SHARDQ_NAME for the command, and must be given here


@engine.task(topic="mail")
def send(to: str, text: str) -> None:
    print(f"mail to {to}: {text}", flush=True)


worker = engine.worker(concurrency=32)
