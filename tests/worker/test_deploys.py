"""Workers are deployed again and again, and killed: a task of a quiet topic is picked up at once all the same."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from shardq import Engine
from shardq.core.layout.keys import shard_keys
from tests.support.servers import Servers
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Start, Worker
from tests.support.working import Note

SHARDS = 16

QUICK_S = 3.0
"""Promised after processes were killed; picked up within milliseconds after they were stopped."""


@pytest.fixture
def running(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS) as engine:
        engine.start()
        yield engine


def registered(servers: Servers, name: str) -> list[int]:
    """The processes that wait in each shard."""
    keys = (shard_keys(name, shard) for shard in range(SHARDS))
    return [int(servers.ask(each.slot, "ZCARD", each.waiting(""))) for each in keys]


def waits(servers: Servers, name: str, least: int) -> None:
    """Until so many processes wait in each shard, those that were killed included."""
    wait_until(lambda: min(registered(servers, name)) >= least, f"{least} wait in each shard", timeout=SOON_S)


def ended(workers: Sequence[Worker], number: signal.Signals) -> None:
    for worker in workers:
        os.kill(worker.pid, number)
    wait_until(lambda: not any(worker.running for worker in workers), "they have ended", timeout=SOON_S)


def is_begun(noted: Callable[[str], list[Note]], id: str) -> bool:
    return any(note.id == id for note in noted("begun"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_quiet_topic_after_five_deploys(
    running: Engine, url: str, name: str, start: Start, noted: Callable[[str], list[Note]], number: signal.Signals
) -> None:
    with Servers(url) as servers:
        workers = [start(concurrency=1) for _ in range(2)]
        for deploy in range(1, 6):
            left = 2 * deploy if number == signal.SIGKILL else 2
            waits(servers, name, left)
            ended(workers, number)
            if number == signal.SIGTERM:
                assert registered(servers, name) == [0] * SHARDS
            workers = [start(concurrency=1) for _ in range(2)]
        waits(servers, name, 12 if number == signal.SIGKILL else 2)
        for _ in range(12):
            began, id = time.monotonic(), str(running.push("quick"))
            wait_until(partial(is_begun, noted, id), "it is picked up")
            assert time.monotonic() - began < QUICK_S
