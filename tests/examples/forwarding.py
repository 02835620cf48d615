"""Forwarding: shardq delays messages for a queue that you have, here a Redis list that something else reads.

    export SHARDQ_URL=redis://127.0.0.1:6379/0
    python tests/examples/forwarding.py

The consumer below knows nothing of shardq. It could be in another language.
"""

import os

import redis

import shardq

URL = os.environ.get("SHARDQ_URL", "redis://127.0.0.1:6379/0")
QUEUE = "mail-queue"


def consume(count: int) -> None:
    """Your consumer, as it was before: it takes what is next on the list."""
    with redis.Redis.from_url(URL) as client:
        for _ in range(count):
            message = client.blpop([QUEUE], timeout=60)
            if message is None:
                raise SystemExit(f"nothing came to {QUEUE} in a minute")
            _, payload = message
            print("took", payload.decode())


def main() -> None:
    # raw: payloads are bytes, and arrive as they are
    with shardq.Engine(URL, name="example-forwarding", shards=4, codec="raw") as engine:
        engine.forward("emails", to=QUEUE)  # stored with the engine: once, for all processes
        engine.start()  # in production: a process of its own, `shardq run`

        messages = {"welcome": 0.0, "how do you like it": 1.0, "we miss you": 0.5}
        for text, delay in messages.items():
            engine.push(f'{{"to": "ann@example.org", "text": "{text}"}}'.encode(), topic="emails", delay=delay)
        consume(len(messages))


if __name__ == "__main__":
    main()
