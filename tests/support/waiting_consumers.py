"""Consumers that wait: ``python -m tests.support.waiting_consumers URL NAME COUNT``. Each acknowledges what it gets."""

from __future__ import annotations

import sys
import threading

from shardq import Consumer, Engine
from tests.support.workers import say, wait_for_the_end


def consume(consumer: Consumer) -> None:
    for _ in consumer:
        pass  # the loop acknowledges


def main(url: str, name: str, count: int) -> None:
    with Engine(url, name=name) as engine:
        consumers = [engine.consumer() for _ in range(count)]
        threads = [threading.Thread(target=consume, args=(consumer,)) for consumer in consumers]
        for thread in threads:
            thread.start()
        say("ready")
        wait_for_the_end()
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
