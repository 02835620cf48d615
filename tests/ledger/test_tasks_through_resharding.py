"""The ledger of a changing number of shards: 4 → 12 → 32 → 24 on a cluster, under a load in which everything happens.

Two processes push, with ids of their own and without, cancel, reschedule, replace and take; three others dispatch and
move the tasks, of which one is killed in the middle of each change, when another joins; and hash slots move from node
to node. Then every id is accounted for: it ended exactly once (acknowledged, buried or cancelled) and nothing is left;
what was cancelled was not given out after, and what was rescheduled not before its new time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.node import Node
from shardq import Engine, Task
from shardq.core.layout.keys import shard_keys
from tests.resharding.load import Book
from tests.support.listed import listed
from tests.support.servers import Servers
from tests.support.states import counted
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.ledger

PROCESSES = 2
DISPATCHERS = 3
WAITING = 2_000
"""Tasks that lie there from the beginning, so that there is something to move."""

LEAST_MOVES = 6
"""Of slots."""

FAR_S = 3600.0


class Dispatchers:
    """Three processes; one of them is killed now and then, and replaced."""

    def __init__(self, stack: ExitStack, url: str, name: str) -> None:
        self._stack = stack
        self._words = (url, name, 4)
        self._running = [self._started() for _ in range(DISPATCHERS)]

    def kill_one(self) -> None:
        self._running.pop(random.randrange(DISPATCHERS)).kill()
        self._running.append(self._started())

    def _started(self) -> Worker:
        worker = self._stack.enter_context(Worker("tests.support.dispatching", *self._words))
        assert worker.said()
        return worker


@contextmanager
def moving_slots(cluster: Cluster, name: str, moved: list[int]) -> Iterator[None]:
    """Moves the slots of shards from node to node until the end of the block, and lists them. Moves them home then, as
    other tests have the same cluster, and the same slots.
    """
    end = threading.Event()
    homes: dict[int, Node] = {}

    def move() -> None:
        while not end.wait(0.05):
            slot = shard_keys(name, random.randrange(24)).slot
            source = cluster.node_of_slot(slot)
            homes.setdefault(slot, source)
            target = random.choice([node for node in cluster.masters if node is not source])
            step = cluster.begin_move(slot, target)
            while step.carry(batch=3):
                end.wait(0.01)
            step.finish()
            moved.append(slot)

    with ThreadPoolExecutor(1) as threads:
        moving = threads.submit(move)
        try:
            yield
        finally:
            end.set()
            moving.result()
            for slot, home in homes.items():
                if cluster.node_of_slot(slot) is not home:
                    cluster.move_slot(slot, home)


def change(engine: Engine, dispatchers: Dispatchers, shards: int) -> None:
    """Begins the change, and kills a dispatcher at some point of it."""
    growth = engine.resize(shards)
    assert growth.progress().in_force
    time.sleep(random.uniform(0, 1.0))  # no wait for anything: the point is to be any
    dispatchers.kill_one()


def assert_all_at_home(url: str, engine: Engine, waiting: Sequence[str]) -> None:
    """Every task that lay there all the time is in the shard where it is looked for, and so is every dead one; there is
    nothing else in any."""
    dead = {task.id for task in listed(engine, state="dead")}
    with Servers(url) as servers:
        for shard in range(32):
            keys = shard_keys(engine.name, shard)
            due = {id.decode() for id in servers.ask(keys.slot, "ZRANGE", keys.due, 0, -1)}
            assert due == {id for id in waiting if engine.topology.shard_of(id) == shard}
            records = {id.decode() for id in servers.ask(keys.slot, "HKEYS", keys.task)}
            assert records == due | {id for id in dead if engine.topology.shard_of(id) == shard}
            assert servers.ask(keys.slot, "EXISTS", keys.moved, keys.staged, keys.leased) == 0


def assert_balanced(book: Book) -> None:
    assert [id for id, times in book.pushed.items() if times > 1] == []
    assert book.unknown == set()
    assert {id: times for id, times in book.ends.items() if times > 1} == {}
    assert [book.story(id) for id in book.ends.keys() ^ book.pushed.keys()] == []
    assert book.early() == []
    # that the run was worth its name, by the least rounds that each process makes
    assert len(book.cancelled) > 50
    assert len(book.moves) > 50
    assert len(book.buried) > 20


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_id_once(cluster: Cluster, name: str, tmp_path: Path) -> None:
    moved: list[int] = []
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(cluster.url, name=name, shards=4))
        dispatchers = Dispatchers(stack, cluster.url, name)
        waiting = engine.push_many([Task(0, delay=FAR_S, topic="waiting") for _ in range(WAITING)])
        loads = [
            stack.enter_context(Worker("tests.resharding.load", cluster.url, name, number, tmp_path))
            for number in range(PROCESSES)
        ]
        assert [load.said() for load in loads] == ["under way"] * PROCESSES

        with moving_slots(cluster, name, moved):
            change(engine, dispatchers, 12)
            assert engine.resize(dry_run=True).wait(90), engine.resize(dry_run=True).progress()
            change(engine, dispatchers, 32)
            change(engine, dispatchers, 24)  # while the last one goes on

            wait_until(lambda: len(moved) >= LEAST_MOVES, "enough slots have moved", timeout=90)
            (tmp_path / "enough").touch()
            assert [load.said() for load in loads] == ["pushed"] * PROCESSES
            assert engine.resize(dry_run=True).wait(90), engine.resize(dry_run=True).progress()
            assert engine.topology.priors == ()

            def drained() -> bool:
                stats = counted(engine)
                return (stats.scheduled, stats.ready, stats.leased) == (WAITING, 0, 0)

            wait_until(drained, "all but what waits is taken", timeout=60)
        for load in loads:
            assert load.stop() == 0
        book = Book().read(tmp_path)
        dead = {task.id for task in listed(engine, state="dead")}
        assert [(book.story(id), engine.get(id)) for id in dead ^ book.buried] == []
        assert_all_at_home(cluster.url, engine, waiting)
        assert [outcome for outcome in map(engine.cancel, waiting[::20]) if not outcome] == []
    assert_balanced(book)
