"""Takers in threads, and what a test pushes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from shardq import Engine
from shardq.core.calls.request import Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from tests.keys.account import Account, Options, Taker
from tests.support.waiting import wait_until


@contextmanager
def taking(engine: Engine, url: str, options: Options, *, takers: int = 3) -> Iterator[list[list[str]]]:
    """Takers of an engine until the end of the block; their books."""
    books: list[list[str]] = [[] for _ in range(takers)]
    end = threading.Event()
    with ThreadPoolExecutor(takers) as threads:
        runs = [
            threads.submit(Taker(engine, url, book.append, options, number).run, end)
            for number, book in enumerate(books)
        ]
        try:
            yield books
        finally:
            end.set()
            for run in runs:
                run.result()


def left(driver: Driver, name: str, shards: int) -> int:
    """Tasks that are there and not dead, counted without a script."""
    count = 0
    for shard in range(shards):
        keys = shard_keys(name, shard)
        count += driver.call(Command(keys.slot, ("HLEN", keys.task), int))
        count -= driver.call(Command(keys.slot, ("ZCARD", keys.dead), int))
        count += driver.call(Command(keys.slot, ("HLEN", keys.moved), int))
    return count


def drained(url: str, name: str, *, shards: int = 4, timeout: float = 60.0) -> None:
    """Waits until nothing is left but what is dead."""
    driver = Driver(Settings.from_url(url, timeout=60.0))
    driver.open()
    try:
        wait_until(lambda: left(driver, name, shards) == 0, "all tasks are done", timeout=timeout)
    finally:
        driver.close()


def account(books: list[list[str]]) -> Account:
    return Account().read(books)
