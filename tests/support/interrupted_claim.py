"""A claim in a main thread, ended by SIGINT as by Ctrl-C: ``python -m tests.support.interrupted_claim URL NAME TOPIC``.

Says what it is about to do, and at its end how many deliveries it got.
"""

from __future__ import annotations

import signal
import sys

from shardq import Engine
from tests.support.workers import say


def main(url: str, name: str, topic: str) -> None:
    # in the background of a shell SIGINT is ignored, and processes inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with Engine(url, name=name) as engine:
        engine.consumer("other").claim(1)  # the connections are open now
        consumer = engine.consumer(topic, lease=3600)
        say("ready")
        sys.stdin.readline()
        try:
            say(f"{len(consumer.claim(100))} claimed")
        except KeyboardInterrupt:
            say("interrupted")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
