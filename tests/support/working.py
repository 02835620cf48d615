"""A worker process: ``python -m tests.support.working URL NAME OPTIONS``, the options in JSON.

Every begin and end of a handler is a line in a file of its process, written at once: it is there after SIGKILL too. So
are the worker's own warnings. When it claims no more, a file says that too. Also read by tests: ``notes``, ``logged``
and ``sated``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from shardq import Backoff, Delivery, Engine, Snooze, Worker
from tests.support.workers import say, wait_for_the_end


class Options(msgspec.Struct, kw_only=True):
    folder: str
    """Where the notes go. A file ``open`` there opens the gate for tasks whose payload is "gate", and ends the snoozes
    of those whose payload is "snooze".
    """
    concurrency: int = 16
    processes: int = 1
    lease: float = 30.0
    grace: float = 30.0
    max_attempts: int = 25
    flavour: Literal["function", "coroutine"] = "function"
    most_s: float = 0.0
    """A handler takes so long at most, at random."""
    fails: float = 0.0
    """So many of them fail."""


class Note(NamedTuple):
    kind: Literal["begun", "done", "failed", "snoozed"]
    id: str
    attempt: int
    pid: int


def notes(folder: Path) -> Iterator[Note]:
    """Returns all notes so far."""
    for file in folder.glob("*.notes"):
        # the last line may be half written
        for line in file.read_text().split("\n")[:-1]:
            kind, id, attempt = line.split(" ")
            yield Note(kind, id, int(attempt), int(file.stem))  # type: ignore[arg-type]  # as they were written


def logged(folder: Path) -> str:
    return "".join(file.read_text() for file in folder.glob("*.log"))


def sated(folder: Path) -> set[int]:
    """Returns the processes that claim no more: one that is not among them may not know yet that it is to stop."""
    return {int(file.stem) for file in folder.glob("*.sated")}


class Handlers:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = Path(options.folder)
        self._gate = self._folder / "open"
        self._files: dict[int, int] = {}

    def function(self, delivery: Delivery) -> None:
        self._note("begun", delivery)
        while delivery.payload == "gate" and not self._gate.exists():
            time.sleep(0.01)
        if self._options.most_s:
            time.sleep(random.uniform(0, self._options.most_s))
        self._end(delivery)

    async def coroutine(self, delivery: Delivery) -> None:
        self._note("begun", delivery)
        while delivery.payload == "gate" and not self._gate.exists():  # noqa: ASYNC110  the gate is a file
            await asyncio.sleep(0.01)
        if self._options.most_s:
            await asyncio.sleep(random.uniform(0, self._options.most_s))
        self._end(delivery)

    def _end(self, delivery: Delivery) -> None:
        if delivery.payload == "snooze" and not self._gate.exists():
            self._note("snoozed", delivery)
            raise Snooze(0.05)
        if random.random() < self._options.fails:
            self._note("failed", delivery)
            raise ValueError("by chance")
        self._note("done", delivery)

    def _note(self, kind: str, delivery: Delivery) -> None:
        pid = os.getpid()
        if pid not in self._files:
            # threads of one process may come here together: two descriptors of one file do no harm
            self._files[pid] = os.open(self._folder / f"{pid}.notes", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            threading.Thread(target=self._watch, args=(pid,), daemon=True).start()
        os.write(self._files[pid], f"{kind} {delivery.id} {delivery.attempt}\n".encode())

    def _watch(self, pid: int) -> None:
        for thread in threading.enumerate():
            if thread.name == "shardq-fetch":
                thread.join()
        (self._folder / f"{pid}.sated").touch()


def prepared(url: str, name: str, options: Options) -> tuple[Engine, Worker]:
    """An engine and its worker, with handlers and a log."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
    logging.basicConfig(filename=Path(options.folder) / f"{os.getpid()}.log", level=logging.WARNING)
    engine = Engine(url, name=name)
    worker = engine.worker(
        concurrency=options.concurrency,
        processes=options.processes,
        lease=options.lease,
        grace=options.grace,
        max_attempts=options.max_attempts,
        backoff=Backoff(base=0.05, cap=1.0),
    )
    handlers = Handlers(options)
    worker.on("")(handlers.function if options.flavour == "function" else handlers.coroutine)
    return engine, worker


def stopped_at_the_end(worker: Worker) -> None:
    """Stops the worker when the test says so, or has ended."""

    def stop() -> None:
        wait_for_the_end()
        worker.stop()

    threading.Thread(target=stop, daemon=True).start()


def main(url: str, name: str, text: str) -> None:
    engine, worker = prepared(url, name, msgspec.json.decode(text, type=Options))
    stopped_at_the_end(worker)
    say("ready")
    worker.run()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
