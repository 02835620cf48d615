"""A program in two versions, each a process: ``python -m tests.support.versions VERSION URL NAME FOLDER``.

It works until its stdin ends, and for each line there it pushes calls of every task that its version has. Each call
that was pushed, and each that was handled, is a line in a file of the process, written before anything else happens.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shardq import Engine
from shardq.delivery import handler
from tests.support.workers import say

CALLS = 10
"""Calls of each task that are pushed for a line."""

TOPIC = "orders"
MOMENT = dt.datetime(2030, 1, 2, tzinfo=dt.UTC)


class Book:
    """The lines of this process."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / f"{os.getpid()}.book", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, call: uuid.UUID) -> None:
        os.write(self._file, f"{what} {call}\n".encode())

    def handled(self, call: object, *others: object, **types: type) -> None:
        assert isinstance(call, uuid.UUID), call
        assert isinstance(others[0] if others else MOMENT, dt.datetime), others
        self.note("handled", call)


def lines(folder: Path, what: str) -> Iterator[uuid.UUID]:
    """The calls that were pushed, or handled, so far."""
    for file in folder.glob("*.book"):
        for line in file.read_text().split("\n")[:-1]:
            kind, call = line.split(" ")
            if kind == what:
                yield uuid.UUID(call)


def old(engine: Engine, book: Book) -> list[Callable[[uuid.UUID], Any]]:
    @engine.task(topic=TOPIC, name="shop.send")
    def send(call: uuid.UUID) -> None:
        book.handled(call)

    @engine.task(topic=TOPIC, name="shop.charge", max_attempts=1)
    async def charge(call: uuid.UUID) -> None:
        book.handled(call)

    return [send.push, charge.push]


def new(engine: Engine, book: Book) -> list[Callable[[uuid.UUID], Any]]:
    """A parameter that is new, another name, and another function."""

    @engine.task(topic=TOPIC, name="shop.send")
    def send(call: uuid.UUID, at: dt.datetime = MOMENT) -> None:
        book.handled(call, at)

    @engine.task(topic=TOPIC, name="shop.bill", aliases=("shop.charge",), max_attempts=1)
    async def bill(call: uuid.UUID) -> None:
        book.handled(call)

    @engine.task(topic=TOPIC, name="shop.thank", max_attempts=1)
    def thank(call: uuid.UUID) -> None:
        book.handled(call)

    return [send.push, lambda call: send.push(call, MOMENT), bill.push, thank.push]


def main(version: str, url: str, name: str, folder: str) -> None:
    logging.basicConfig(filename=Path(folder) / f"{os.getpid()}.log", level=logging.WARNING)
    handler.UNKNOWN_S = 0.2
    book, engine = Book(Path(folder)), Engine(url, name=name)
    pushes = (old if version == "old" else new)(engine, book)
    worker = engine.worker()
    working = threading.Thread(target=worker.run)
    working.start()
    say("ready")
    while sys.stdin.readline():
        for push in pushes:
            for _ in range(CALLS):
                call = uuid.uuid4()
                book.note("pushed", call)
                push(call)
        say("pushed")
    worker.stop()
    working.join()
    engine.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
