"""A process that posts webhooks until it is killed: URL and NAME of the engine."""

from __future__ import annotations

import sys
import threading

from shardq import Engine
from tests.webhooks.posting import LOOPBACK


def main(url: str, name: str) -> None:
    engine = Engine(url, name=name, sinks=[LOOPBACK])
    engine.start()
    print("started", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
