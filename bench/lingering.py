"""``python -m bench.lingering URL NAME`` is a process with a worker whose handler of batches lingers. The batches suite
starts it. It returns the sizes of its batches.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from bench.children import taking_part
from bench.consuming import working
from shardq import Batch, Engine

BATCH = 500
LINGER_S = 0.2


def main(url: str, name: str) -> None:
    with Engine(url, name=name) as engine:
        sizes: list[int] = []
        worker = engine.worker()

        @worker.on("", batch=BATCH, linger=LINGER_S)
        def handle(batch: Batch[Any]) -> None:
            sizes.append(len(batch))

        def work(ending: threading.Event) -> list[int]:
            with working(worker):
                ending.wait()
            return sizes

        taking_part(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
