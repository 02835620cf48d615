"""``python -m bench.draining URL NAME CONSUMERS`` is a process full of consumers. The fleet suite starts it.

It returns the number of tasks that they took.
"""

from __future__ import annotations

import sys
import threading

from bench.children import taking_part
from shardq import Engine

CLAIM = 100
WAIT_S = 0.2
"""A consumer notices within this time that it has to stop."""


def main(url: str, name: str, consumers: int) -> None:
    with Engine(url, name=name) as engine:

        def work(ending: threading.Event) -> int:
            taken = [0] * consumers

            def drain(number: int) -> None:
                consumer = engine.consumer()
                while not ending.is_set():
                    deliveries = consumer.claim(CLAIM, wait=WAIT_S)
                    consumer.ack(deliveries)
                    taken[number] += len(deliveries)

            threads = [threading.Thread(target=drain, args=(number,)) for number in range(consumers)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return sum(taken)

        taking_part(work)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
