"""What was spooled is replayed into servers that fail over, or lose their last second: a command leaves the file only
when the replicas, and the disk, have what it did.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from shardq import Engine, Task
from tests.spool.conftest import seen
from tests.support.disk import WatchedServer
from tests.support.engines import Engines
from tests.support.handling import handle
from tests.support.waiting import wait_until

PUSHED = 200
"""Tasks of each outage, on each of these ids once and on as many that are made."""

REMEMBERED_S = 300.0
"""How long a replica counts that a master had for a moment only, as in a failover."""

LATER_S = 4.0
"""So that a task is not handled before it can be lost."""

OUTAGES = 2
"""Thirty of each passed when this was written: some minutes."""

LARGE = "x" * 100_000
"""More of these than fit into the buffers of a connection to a replica that stands still."""

Outage = Callable[[], None]


def _whole_run(
    engines: Engines, url: str, name: str, path: Path, outages: Iterator[tuple[Outage, Outage]], payload: str
) -> None:
    """Each outage begins, tasks are spooled, it ends, and the servers lose something while those are replayed."""
    spooled: list[str] = []
    handled, ended = set[str](), threading.Event()
    with ExitStack() as stack:
        other = stack.enter_context(Engine(url, name=name, shards=6, timeout=10))
        other.start()
        handling = threading.Thread(target=handle, args=(other, handled, ended.is_set))
        handling.start()
        stack.callback(handling.join)
        stack.callback(ended.set)
        engine = engines.make(url, name=name, timeout=1.0, spool=path)
        engine.open()
        for number, (end, spoil) in enumerate(outages):
            tasks = [Task(payload, id=f"{number}-{n}", dedup=0.001, delay=LATER_S) for n in range(PUSHED)]
            tasks += [Task(payload, delay=LATER_S)] * PUSHED
            receipts = engine.push_many(tasks)
            spooled += [receipt for receipt in receipts if receipt.outcome == "spooled"]
            before = seen(path)
            end()
            wait_until(lambda b=before: _began(path, b.replayed), "they are being replayed", timeout=REMEMBERED_S + 60)  # type: ignore[misc]
            spoil()
        assert spooled, "something was spooled"
        wait_until(lambda: seen(path).waiting == 0, "all is confirmed", timeout=REMEMBERED_S + 60)
        wait_until(lambda: set(spooled) <= handled, "none is lost", timeout=120)


def _began(path: Path, replayed: int) -> bool:
    now = seen(path)
    return bool(now.sent or now.replayed > replayed)


def _nothing() -> None:
    pass


def _power_cuts(server: WatchedServer, count: int) -> Iterator[tuple[Outage, Outage]]:
    draw = random.Random(count)

    def spoil() -> None:
        time.sleep(draw.uniform(0, 1.5))
        server.lose_power(draw)

    server.lose_power(draw)
    for _ in range(count):
        yield server.start, spoil
    server.start()


def _promotions(cluster: Cluster, count: int) -> Iterator[tuple[Outage, Outage]]:
    """All masters are frozen, so commands are spooled. They go on, while a replica stands still, and it takes over."""
    for number in range(count):
        master = cluster.masters[number % 3]
        [replica] = cluster.replicas_of(master)
        replica.pause()
        for each in cluster.masters:
            each.pause()

        def end() -> None:
            for each in cluster.nodes:
                if each is not replica:  # noqa: B023
                    each.resume()

        def spoil() -> None:
            time.sleep(0.3)
            master.kill()  # noqa: B023
            replica.resume()  # noqa: B023
            cluster.wait_promoted(master)  # noqa: B023
            master.restart()  # noqa: B023
            cluster.wait_ok()
            wait_until(lambda: all(map(cluster.replicas_of, cluster.masters)), "each has a replica", timeout=60)

        yield end, spoil


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(1800)
def test_power_cuts_lose_nothing_that_was_spooled(
    engines: Engines, server_binary: Path, name: str, tmp_path: Path
) -> None:
    with WatchedServer(server_binary, tmp_path / "server") as server:
        with Engine(server.url, name=name, shards=6) as engine:
            engine.open()
        _whole_run(engines, server.url, name, tmp_path / "it.spool", _power_cuts(server, OUTAGES), "x")


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.timeout(1800)
def test_promotions_lose_nothing_that_was_spooled(
    engines: Engines, own_cluster: Cluster, name: str, tmp_path: Path
) -> None:
    _whole_run(engines, own_cluster.url, name, tmp_path / "it.spool", _promotions(own_cluster, OUTAGES), LARGE)
