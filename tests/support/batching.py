"""A worker process with a handler of batches: ``python -m tests.support.batching URL NAME FOLDER FLAVOUR PROCESSES``.

Payloads are numbers. One in ``POISON`` makes each call fail that it is in. Every call that ends well is a line in a
file of its process, with the number and the failures of each task, written at once: it is there after SIGKILL, too.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shardq import Backoff, Batch, Engine
from tests.support.workers import say
from tests.support.working import stopped_at_the_end

POISON = 1000
ATTEMPTS = 10


class Done(NamedTuple):
    number: int
    failures: int
    lapses: int


def is_poisoned(number: int) -> bool:
    return number % POISON == 7


def done_in(folder: Path) -> Iterator[Done]:
    """All tasks of calls that ended well."""
    for file in folder.glob("*.done"):
        # the last line may be half written
        for line in file.read_text().split("\n")[:-1]:
            for each in line.split():
                yield Done(*map(int, each.split(":")))


def main(url: str, name: str, folder: str, flavour: str, processes: str) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    logging.basicConfig(filename=Path(folder) / f"{os.getpid()}.log", level=logging.CRITICAL)
    engine = Engine(url, name=name)
    backoff = Backoff(base=0.02, cap=0.2)
    worker = engine.worker(concurrency=4, processes=int(processes), lease=4.0, backoff=backoff, max_attempts=ATTEMPTS)
    file = os.open(Path(folder) / f"{os.getpid()}.done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def store(batch: Batch[int]) -> None:
        if any(map(is_poisoned, batch.payloads)):
            raise ValueError("poison")
        line = " ".join(f"{each.payload}:{each.failures}:{each.lapses}" for each in batch)
        os.write(file, f"{line}\n".encode())

    async def astore(batch: Batch[int]) -> None:
        await asyncio.sleep(0)
        store(batch)

    worker.on("", batch=500, linger=0.05, concurrency=2)(store if flavour == "function" else astore)
    stopped_at_the_end(worker)
    say("ready")
    worker.run()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
