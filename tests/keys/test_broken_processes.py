"""The ledger of keys: workers and dispatchers are killed a hundred times, and the number of shards changes under load.
No two leases of a key overlap by the servers' clocks, each key comes in its order, and nothing is lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import redis

from cluster.cluster import Cluster
from cluster.node import Node
from shardq import Engine, Task
from tests.keys.account import TOPIC, Account, Options, books_in
from tests.keys.running import drained
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = [pytest.mark.slow, pytest.mark.ledger, pytest.mark.timeout(600)]

SHARDS = 4
KEYS = 60
KILLS = 50
ENOUGH = 500
PROMOTED_S = 75.0

OPTIONS = Options(lease=3.0, verbs={"ack": 0.95, "retry": 0.04, "lapse": 0.002}, work_s=0.01)


class Fleet:
    """Processes that take, and processes that dispatch; who is killed is replaced."""

    def __init__(self, stack: ExitStack, url: str, name: str, folder: Path, *, takers: int = 3) -> None:
        self._stack = stack
        options, numbers = msgspec.json.encode(OPTIONS).decode(), iter(range(1_000_000))
        self._words: dict[str, Callable[[], tuple[object, ...]]] = {
            "tests.keys.account": lambda: (url, name, next(numbers), folder, options),
            "tests.support.dispatching": lambda: (url, name, SHARDS),
        }
        self.running = [self._started(module) for module in ["tests.keys.account"] * takers]
        self.running += [self._started("tests.support.dispatching") for _ in range(2)]
        for _, worker in self.running:
            assert worker.said()

    def _started(self, module: str) -> tuple[str, Worker]:
        return module, self._stack.enter_context(Worker(module, *self._words[module]()))

    def kill_one(self) -> None:
        """Any; it is as killed as another in the middle of something."""
        place = random.randrange(len(self.running))
        module, worker = self.running[place]
        assert worker.running, "it has ended by itself"
        worker.kill()
        self.running[place] = self._started(module)

    def stop(self) -> None:
        for _, worker in self.running:
            assert worker.stop() == 0


@contextmanager
def pushing(engine: Engine, ids: list[str]) -> Iterator[None]:
    """Pushes to all keys in turn until the end of the block, one after the other, as that is their order."""
    end = threading.Event()

    def push() -> None:
        n = 0
        while not end.wait(0.002):
            ids.append(engine.push(n, topic=TOPIC, key=f"k{n % KEYS}"))
            n += 1

    with ThreadPoolExecutor(1) as threads:
        run: Future[None] = threads.submit(push)
        try:
            yield
        finally:
            end.set()
            run.result()


def assert_all_went_well(folder: Path, ids: list[str]) -> Account:
    found = Account().read(books_in(folder))
    found.assert_never_more(1)
    found.assert_in_order()
    found.assert_all(ids)
    assert len(ids) > ENOUGH
    return found


@pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)
def test_many_kills(url: str, name: str, tmp_path: Path) -> None:
    ids: list[str] = []
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS, timeout=60.0))
        engine.limit(TOPIC, per_key=1)
        fleet = Fleet(stack, url, name, tmp_path)
        with pushing(engine, ids):
            many = url.startswith("redis:")  # fewer kills on the cluster come slower: some must meet who has begun
            for _ in range(KILLS if many else KILLS // 4):
                time.sleep(random.uniform(0, 0.6 if many else 2.0))  # no wait for anything: the point is to be any
                fleet.kill_one()
            wait_until(lambda: len(ids) > ENOUGH, "it pushes", timeout=120)
        drained(url, name, shards=SHARDS, timeout=200)
        fleet.stop()
    found = assert_all_went_well(tmp_path, ids)
    lapsed = [lease for lease in found.leases if lease.verb == "lapse"]
    assert lapsed, "no kill met a task"


@pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)
def test_shards_that_change_under_load(url: str, name: str, tmp_path: Path) -> None:
    """4 → 16 → 6, and a kill in the middle of each."""
    ids: list[str] = []
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS, timeout=60.0))
        engine.limit(TOPIC, per_key=1)
        engine.push_many([Task(0, topic="far", key=f"f{n % 500}", delay=3600) for n in range(2000)])
        fleet = Fleet(stack, url, name, tmp_path)
        with pushing(engine, ids):
            wait_until(lambda: len(ids) > 500, "it pushes")
            for shards in (16, 6):
                change = engine.resize(shards)
                time.sleep(random.uniform(0, 1.0))
                fleet.kill_one()
                assert change.wait(120), change.progress()
            count = len(ids)
            wait_until(lambda: len(ids) > count + 500, "it pushes")
        engine.cancel_all(topic="far")
        drained(url, name, shards=16, timeout=200)
        fleet.stop()
    assert_all_went_well(tmp_path, ids)


class Lost:
    """A master that is killed once its replica has everything. It takes no writes meanwhile, so nothing is lost."""

    def __init__(self, cluster: Cluster, master: Node) -> None:
        self._master = master
        (self._replica,) = cluster.replicas_of(master)

    def fail_over(self) -> None:
        self._master.ask("CLIENT", "PAUSE", 60_000, "WRITE")
        offset = int(self._master.ask("INFO", "replication")["master_repl_offset"])
        wait_until(lambda: int(self._replica.ask("ROLE")[4]) >= offset, "the replica has everything")
        self._master.kill()
        wait_until(self._promoted, "the replica is promoted", timeout=PROMOTED_S)

    def _promoted(self) -> bool:
        with suppress(redis.ConnectionError, redis.TimeoutError):
            return bool(self._replica.ask("ROLE")[0] == "master")
        return False


def test_failovers_while_shards_change(own_cluster: Cluster, name: str, tmp_path: Path) -> None:
    """4 → 16 → 6 on six nodes: each of the three masters is lost, two of them in the middle of a change."""
    url, ids = own_cluster.url, list[str]()
    first, *masters = [Lost(own_cluster, master) for master in own_cluster.masters]
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS, timeout=PROMOTED_S + 15))
        engine.limit(TOPIC, per_key=1)
        engine.push_many([Task(0, topic="far", key=f"f{n % 500}", delay=3600) for n in range(2000)])
        fleet = Fleet(stack, url, name, tmp_path)
        with pushing(engine, ids):
            wait_until(lambda: len(ids) > 300, "it pushes")
            first.fail_over()
            for shards, master in zip((16, 6), masters, strict=True):
                change = engine.resize(shards)
                time.sleep(random.uniform(0, 0.5))
                master.fail_over()
                assert change.wait(120), change.progress()
            count = len(ids)
            wait_until(lambda: len(ids) > count + 300, "it pushes", timeout=60)
        engine.cancel_all(topic="far")
        drained(url, name, shards=16, timeout=200)
        fleet.stop()
    assert_all_went_well(tmp_path, ids)
