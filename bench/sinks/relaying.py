"""The process that forwards: ``python -m bench.sinks.relaying URL NAME``. Its result is the CPU time that it took."""

from __future__ import annotations

import sys
import threading
import time

from bench.children import taking_part
from shardq import Engine


def main(url: str, name: str) -> None:
    with Engine(url, name=name) as engine:
        engine.start()

        def relay(ending: threading.Event) -> float:
            began = time.process_time()
            ending.wait()
            return time.process_time() - began

        taking_part(relay)


if __name__ == "__main__":
    main(*sys.argv[1:])
