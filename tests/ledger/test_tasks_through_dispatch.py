"""The ledger: every task of a large, disturbed run is accounted for. None lost, none twice, none early.

120,000 tasks due at random instants of the next 5 s go through 16 shards. Four producers push them, two of them other
processes; two other processes dispatch, of which one is killed before the last tasks are pushed, when a third joins;
consumers in this process take them as they become ready.

**Early** is judged by the clock of the shard's master alone, in two ways. A claim sets the deadlines of its leases from
that clock, so what is stored there gives the server's own instant of every single claim: no task may have been claimed
before it was due. And all the while a script of the test looks into ready lists and at the clock at one instant: what
stands in a ready list before it is due would show, even when it is claimed after.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from shardq import Consumer, Delivery, Engine
from shardq.core.layout.keys import shard_keys
from shardq.core.model.record import decode_record
from tests.support.pushing import push_spread
from tests.support.servers import Servers
from tests.support.states import counted
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.ledger

TASKS = 120_000
SHARDS = 16
SPREAD_S = 5.0
LEASE_S = 600  # none runs out: a task claimed twice is a mistake, not a lease

LOOK = """
local ids = redis.call('LRANGE', KEYS[1], -200, -1)
local now = redis.call('TIME')
return {now[1], now[2], #ids > 0 and redis.call('HMGET', KEYS[2], unpack(ids)) or {}}
"""


class Book:
    """What was claimed, and what was early. For one consumer thread each; added up at the end."""

    def __init__(self) -> None:
        self.claimed: Counter[str] = Counter()
        self.early: list[str] = []

    def enter(self, deliveries: list[Delivery], servers: Servers, name: str) -> None:
        """Before the acknowledgement, while the leases stand."""
        self.claimed.update(d.id for d in deliveries)
        by_shard: defaultdict[int, list[Delivery]] = defaultdict(list)
        for delivery in deliveries:
            by_shard[delivery.shard].append(delivery)
        for shard, some in by_shard.items():
            keys = shard_keys(name, shard)
            deadlines = servers.ask(keys.slot, "ZMSCORE", keys.leased, *(d.id for d in some))
            for delivery, deadline in zip(some, deadlines, strict=True):
                claimed_ms = float(deadline) - LEASE_S * 1000
                if claimed_ms < due_ms(delivery.payload):
                    self.early.append(f"{delivery.id} was claimed {due_ms(delivery.payload) - claimed_ms} ms early")


def due_ms(at: float) -> int:
    """Due times are kept in ms, rounded up, less what is below any clock's resolution."""
    return math.ceil(at * 1000 - 0.001)


@contextmanager
def looking(url: str, name: str) -> Iterator[list[str]]:
    """Looks into the ready lists until the end of the block; what was there before its time."""
    early: list[str] = []
    end = threading.Event()

    def look() -> None:
        with Servers(url) as servers:
            shard = 0
            while not end.wait(0.002):
                shard = (shard + 1) % SHARDS
                keys = shard_keys(name, shard)
                seconds, micros, records = servers.ask(keys.slot, "EVAL", LOOK, 2, keys.ready(""), keys.task)
                now_ms = int(seconds) * 1000 + int(micros) // 1000
                dues = [due_ms(decode_record(record).payload) for record in records if record is not None]
                early.extend(f"in the list of shard {shard} {due - now_ms} ms early" for due in dues if due > now_ms)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield early
    finally:
        end.set()
        thread.join()


def consume(consumer: Consumer, url: str, name: str, end: threading.Event) -> Book:
    book = Book()
    with Servers(url) as servers:
        while not end.is_set():
            if deliveries := consumer.claim(1000, wait=0.1):
                book.enter(deliveries, servers, name)
                consumer.ack(deliveries)
    return book


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_every_task_exactly_once_and_none_early(url: str, name: str, tmp_path: Path) -> None:
    end = threading.Event()
    share, last = TASKS // 4, TASKS // 10
    files = [tmp_path / "one", tmp_path / "two"]
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=SHARDS))
        threads = stack.enter_context(ThreadPoolExecutor(6))
        stack.callback(end.set)
        dispatchers = [stack.enter_context(Worker("tests.support.dispatching", url, name, SHARDS)) for _ in range(2)]
        for dispatcher in dispatchers:
            assert dispatcher.said()
        early = stack.enter_context(looking(url, name))
        consumers = [threads.submit(consume, engine.consumer(lease=LEASE_S), url, name, end) for _ in range(2)]
        producers = [
            stack.enter_context(Worker("tests.support.pushing", url, name, share, SPREAD_S, file)) for file in files
        ]
        pushing = [threads.submit(push_spread, engine, count, SPREAD_S) for count in (share, share - last)]

        wait_until(lambda: engine.stats().dispatched > TASKS // 5, "a part of all is dispatched", timeout=60)
        dispatchers[0].kill()
        # only now, so that the kill is one in the middle however late it came
        pushing.append(threads.submit(push_spread, engine, last, SPREAD_S))
        joined = stack.enter_context(Worker("tests.support.dispatching", url, name, SHARDS))
        assert joined.said()

        pushed = [id for producer in pushing for id in producer.result(120)]
        for producer, file in zip(producers, files, strict=True):
            assert producer.said() == "pushed"
            pushed += file.read_text().split()
        assert len(pushed) == len(set(pushed)) == TASKS

        def all_done() -> bool:
            for consumer in consumers:
                assert not consumer.done(), consumer.result()
            stats = counted(engine)
            return (stats.scheduled, stats.ready, stats.leased) == (0, 0, 0)

        wait_until(all_done, "all are dispatched, claimed and acknowledged", timeout=120)
        end.set()
        books = [consumer.result(60) for consumer in consumers]
        stats = counted(engine)

    claimed = books[0].claimed + books[1].claimed
    assert [id for id, times in claimed.items() if times > 1] == []
    assert claimed.keys() == set(pushed)
    assert [*books[0].early, *books[1].early, *early] == []
    assert (stats.dispatched, stats.dead) == (TASKS, 0)
    assert sum(shard.reaped or 0 for shard in stats.shards) == 0
    with Servers(url) as servers:
        left = {key.decode().rpartition(":")[2] for key in servers.held(name)}
    assert left <= {"meta", "topics", "topology", "members", "edits", "waiting/", "history"}
