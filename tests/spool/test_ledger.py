"""The ledger of the spool: producers that share one file are killed, and so is Redis, again and again. What was
acknowledged as pushed or spooled is there exactly once, what was cancelled is not, and the last push of an id wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine
from shardq.core.model.record import decode_record
from tests.spool.conftest import seen
from tests.spool.producing import Book
from tests.support.servers import Servers, keys_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.ledger

SHARDS = 6
SPOOLED = 100
"""Commands that each outage must have put into the file."""


class Producers:
    """Three processes with one file. Whoever is killed is replaced."""

    def __init__(self, stack: ExitStack, url: str, name: str, path: Path, books: Path) -> None:
        self._stack = stack
        self._words = (url, name, path)
        self._books = books
        books.mkdir()
        self._count = 0
        self._running = [self._started() for _ in range(3)]

    def _started(self) -> Worker:
        self._count += 1
        book = self._books / f"{self._count}"
        kind = "asyncio" if self._count % 2 else "sync"
        worker = self._stack.enter_context(Worker("tests.spool.producing", *self._words, book, kind))
        assert worker.said() == "under way"
        return worker

    def kill_one(self) -> None:
        victim = self._running.pop(0)
        assert victim.running, "a producer has ended by itself"
        victim.kill()
        self._running.append(self._started())

    def stop(self) -> None:
        for each in self._running:
            assert each.stop() == 0


def stored(url: str, name: str) -> list[tuple[str, str]]:
    """Every task, as id and payload."""
    with Servers(url) as servers:
        found = []
        for keys in keys_of(name, SHARDS):
            held = servers.ask(keys.slot, "HGETALL", keys.task)
            pairs = held.items() if isinstance(held, dict) else zip(held[::2], held[1::2], strict=True)
            found += [(id.decode(), decode_record(record).payload) for id, record in pairs]
        return found


def whole_run(url: str, name: str, folder: Path, outages: Iterator[Callable[[], None]]) -> None:
    path = folder / "shared.spool"
    with ExitStack() as stack:
        stack.enter_context(Engine(url, name=name, shards=SHARDS)).open()
        producers = Producers(stack, url, name, path, folder / "books")
        for end in outages:
            before = seen(path)

            def enough(before: int = before.waiting + before.replayed) -> bool:
                now = seen(path)
                return bool(now.waiting + now.replayed >= before + SPOOLED)

            wait_until(enough, "the outage has been spooled", timeout=150)
            producers.kill_one()
            end()
            producers.kill_one()
        wait_until(lambda: seen(path).replayed > 0, "replaying goes on")
        producers.stop()
    with Engine(url, name=name, spool=path) as last:  # what the killed ones have left
        wait_until(lambda: seen(path).waiting == 0, "nothing is left in the file", timeout=150)
        assert not any("spool" in reason for reason in last.health().reasons)
    book = Book(folder / "books")
    assert book.outcomes["spooled"] > 0
    book.check(stored(url, name))


@pytest.mark.timeout(600)
def test_a_server_that_is_killed_again_and_again(own_server: Server, name: str, tmp_path: Path) -> None:
    def outages() -> Iterator[Callable[[], None]]:
        for _ in range(3):
            own_server.kill()
            yield own_server.start

    whole_run(own_server.url, name, tmp_path, outages())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_of_a_cluster_that_stands_still(server_binary: Path, name: str, tmp_path: Path) -> None:
    """Without replicas: a failover may lose what it had not copied."""
    options = {"appendonly": "yes", "appendfsync": "no"}
    with Cluster(server_binary, masters=3, replicas=0, node_timeout_ms=60_000, options=options) as cluster:

        def outages() -> Iterator[Callable[[], None]]:
            for number in range(2):
                node = cluster.masters[number]
                node.pause()
                yield node.resume

        whole_run(cluster.url, name, tmp_path, outages())
