"""Pages of tasks: their order, that a walk meets every task that stays as it is, and what a page costs."""

from __future__ import annotations

import base64
import datetime as dt
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from cluster.server import Server
from shardq import Engine, Task, TaskInfo
from shardq.core.calls.listing import IdPage, ReadyPage
from shardq.core.calls.request import Call, Command
from shardq.core.drivers.retry import Deadline, Spare
from shardq.core.drivers.sync import Driver
from shardq.core.model.record import codec_named
from shardq.core.operation import Histories, run
from shardq.core.topology_cache import TopologyCache
from shardq.engine.access import EngineAccess
from shardq.engine.wiring import connected
from shardq.errors import InvalidOption, ShardqError
from shardq.features.listing import pages
from shardq.features.listing.query import Query
from tests.support.engines import SHARDS, Engines
from tests.support.listed import listed
from tests.support.states import STATES, claim, put
from tests.support.waiting import wait_until

K = TypeVar("K")
T = TypeVar("T")

COUNT = 8000

FAR = 1_900_000_000
"""March 2030."""


@pytest.fixture
def patient(engines: Engines, url: str, name: str) -> Engine:
    """An engine for many tasks on a machine that is busy."""
    return engines.opened(url, name=name, shards=SHARDS, timeout=60.0)


def order(task: TaskInfo) -> tuple[dt.datetime | None, bytes]:
    return task.due, task.id.encode()


# ---- what is listed


def test_dead_tasks_of_many_pages(engine: Engine) -> None:
    engine.push_many([Task(n, topic=("mail", "")[n % 2]) for n in range(250)])
    consumer = engine.consumer(["mail", ""])
    engine.start()
    wait_until(lambda: engine.stats().ready == 250, "all are ready")
    while engine.stats().dead < 250:
        for delivery in consumer.claim(100, wait=1.0):
            consumer.bury(delivery, f"no {delivery.payload}")
    found = list(engine.dead())
    assert {task.reason for task in found} == {f"no {n}" for n in range(250)}
    assert [task.died for task in found] == sorted(task.died for task in found if task.died)
    assert {task.payload for task in engine.dead("mail")} == set(range(0, 250, 2))
    assert list(engine.dead("none")) == []
    newest = listed(engine, newest=True, limit=70)
    assert [task.id for task in newest] == [task.id for task in reversed(found)]
    assert [task.id for task in listed(engine, topic="mail", state="dead", newest=True, limit=9)] == [
        task.id for task in newest if task.topic == "mail"
    ]
    with pytest.raises(InvalidOption, match="of another query"):
        engine.tasks(state="dead", cursor=engine.tasks(newest=True, limit=1).cursor)
    with pytest.raises(InvalidOption, match="only dead tasks have a time of death"):
        engine.tasks(state="ready", newest=True)


def test_every_task_once_in_the_order_of_its_due_time(patient: Engine) -> None:
    """Many are due at one instant."""
    ids = patient.push_many([Task(n, at=FAR + n % 97) for n in range(COUNT)])
    tasks = listed(patient, state="scheduled", limit=1000)
    assert sorted(task.id for task in tasks) == sorted(ids)
    assert [order(task) for task in tasks] == sorted(order(task) for task in tasks)
    few = [task.id for task in tasks[:250]]
    page = patient.tasks(limit=100)
    met = [task.id for task in page]
    for limit in (1, 149):
        page = patient.tasks(limit=limit, cursor=page.cursor)
        met += [task.id for task in page]
    assert met == few


def test_a_topic_among_others(engine: Engine) -> None:
    engine.push_many([Task(n, at=FAR + n, topic="mail2") for n in range(3000)])
    ids = engine.push_many([Task(n, at=FAR + 1000 * n, topic="mail") for n in range(5)])
    assert [task.id for task in listed(engine, topic="mail")] == ids
    assert [task.id for task in listed(engine, topic="")] == []
    # those before FAR + 1000 are most of the others
    assert [task.id for task in listed(engine, topic="mail", due=(FAR + 1, FAR + 3000))] == ids[1:3]
    assert [task.id for task in listed(engine, due=(dt.datetime.fromtimestamp(FAR + 2999.5, dt.UTC), None))] == ids[3:]


def test_what_is_told_of_a_task(running: Engine) -> None:
    """The same as by id."""
    for state in STATES:
        id = put(running, state, topic=state, headers={"k": "v"}, tags=["t"], max_attempts=7)
        page = running.tasks(state=state)
        assert (page.cursor, [*page]) == (None, [running.get(id)])
        assert [task.id for task in listed(running, topic=state)] == [id]
    assert [task.state for task in listed(running)] == list(STATES)


def test_states_of_which_there_is_nothing_are_passed_over(running: Engine) -> None:
    id = put(running, "dead", topic="mail")
    page = running.tasks(topic="mail")
    assert ([task.id for task in page], page.cursor) == ([id], None)
    assert (running.tasks(topic="sms"), running.tasks(topic="sms").cursor) == ([], None)


def test_leases_of_a_holder(running: Engine) -> None:
    for name in ("shop", "shop-2"):
        running.push_many([Task(n, topic=name) for n in range(3)])
    shop = running.consumer("shop", name="shop", lease=60)
    other = running.consumer("shop-2", name="shop-2", lease=50)
    for consumer, name in ((shop, "shop"), (other, "shop-2")):
        deliveries = claim(consumer, 3)
        holder = deliveries[0].token.rpartition(":")[0]
        for given in (name, holder):
            tasks = listed(running, holder=given)
            assert sorted(task.id for task in tasks) == sorted(each.id for each in deliveries)
            assert {task.holder for task in tasks} == {holder}
    deadlines = [task.deadline for task in listed(running, state="leased") if task.deadline]
    assert (len(deadlines), deadlines) == (6, sorted(deadlines))
    assert listed(running, holder="sho") == []


def test_large_payloads_end_a_page(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2)
    ids = [engine.push("x" * (300 << 10), at=FAR + n) for n in range(20)]
    page = engine.tasks(limit=100)
    assert 1 <= len(page) <= 8
    assert page.cursor is not None
    assert [task.id for task in listed(engine, limit=100)] == ids


# ---- while things happen


@pytest.mark.slow
def test_a_walk_while_tasks_are_pushed_dispatched_and_moved(patient: Engine) -> None:
    """To twice as many shards: every task that stays scheduled is met, once."""
    ids = [*patient.push_many([Task(n, at=FAR + n % 1013, topic="stays") for n in range(COUNT)])]
    patient.start()
    ending, met = threading.Event(), Counter[str]()

    def others() -> None:
        while not ending.is_set():
            patient.push_many([Task(n, delay=n / 100, topic="goes") for n in range(20)])
            patient.push_many([Task(n, at=FAR + n, topic="comes") for n in range(50)])

    with ThreadPoolExecutor(1) as threads:
        pushing = threads.submit(others)
        try:
            page = patient.tasks(state="scheduled", limit=500)
            patient.resize(8)
            while True:
                met.update(task.id for task in page if task.topic == "stays")
                if page.cursor is None:
                    break
                page = patient.tasks(state="scheduled", limit=500, cursor=page.cursor)
        finally:
            ending.set()
        pushing.result()
    assert set(ids) - met.keys() == set()
    assert {id: times for id, times in met.items() if times > 1} == {}


def test_a_walk_through_ready_tasks_while_others_are_claimed(running: Engine) -> None:
    ids = [*running.push_many([Task(n, topic=("mail", "sms")[n % 2]) for n in range(2000)])]
    wait_until(lambda: running.stats().ready == len(ids), "all are ready")
    page, met, gone = running.tasks(state="ready", limit=50), list[str](), set[str]()
    consumer = running.consumer("mail", lease=60)
    while True:
        met += [task.id for task in page]
        gone.update(each.id for each in consumer.claim(7))
        running.push_many([Task(n, topic="sms") for n in range(3)])
        if page.cursor is None:
            break
        page = running.tasks(state="ready", limit=50, cursor=page.cursor)
    assert len(set(met)) == len(met)
    assert set(ids) - gone <= set(met)
    assert len(gone) > 100


# ---- the cursor


def test_a_cursor_is_good_for_its_query_only(engines: Engines, engine: Engine, url: str, name: str) -> None:
    engine.push_many([Task(n, at=FAR + n, topic="mail") for n in range(10)])
    query: dict[str, Any] = {"topic": "mail", "due": (FAR, FAR + 100)}
    page = engine.tasks(**query, limit=4)
    cursor = page.cursor
    assert cursor is not None
    # of another process, and of another length
    other = engines.opened(url, name=name)
    assert [task.payload for task in other.tasks(**query, limit=9, cursor=cursor)] == [4, 5, 6, 7, 8, 9]
    for wrong in (
        query | {"topic": "sms"},
        query | {"due": (FAR, None)},
        {"topic": "mail"},
        {"topic": "mail", "state": "dead"},
    ):
        with pytest.raises(InvalidOption, match=r"is of another query, or of another engine; give the same topic="):
            engine.tasks(**wrong, cursor=cursor)
    with (
        pytest.raises(InvalidOption, match="of another engine"),
        engines.make(url, name=f"{name}-2", shards=1) as another,
    ):
        another.tasks(**query, cursor=cursor)


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_cursor_that_is_broken_is_refused(engine: Engine) -> None:
    engine.push_many([Task(n, at=FAR + n) for n in range(10)])
    cursor = engine.tasks(limit=4).cursor
    assert cursor is not None
    changed = bytearray(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    changed[-3] ^= 1
    for broken in ("", "x", cursor[:-1], cursor[1:], cursor + "A", "ä", base64.urlsafe_b64encode(changed).decode()):
        with pytest.raises(InvalidOption, match=r"is not one that a page gave, or not all of it; give the \.cursor"):
            engine.tasks(cursor=broken)


def test_a_cursor_holds_after_a_failover(engines: Engines, own_server: Server, replica: Server, name: str) -> None:
    engine = engines.opened(own_server.url, name=name, shards=4)
    ids = [*engine.push_many([Task(n, at=FAR + n // 100) for n in range(2000)])]
    page = engine.tasks(limit=700)
    offset = own_server.ask("INFO", "replication")["master_repl_offset"]
    wait_until(lambda: replica.ask("INFO", "replication")["slave_repl_offset"] >= offset, "the replica has all")
    replica.ask("REPLICAOF", "NO", "ONE")
    met = [task.id for task in page]
    after = engines.opened(replica.url, name=name)
    while page.cursor is not None:
        page = after.tasks(limit=700, cursor=page.cursor)
        met += [task.id for task in page]
    assert sorted(met) == sorted(ids)


# ---- what a page costs


class Counting:
    """Carries requests, and counts them and what they looked at."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.requests = 0
        self.looked_at: list[int] = []

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        result = self._driver.call(call, timeout, deadline)
        self._note(result)
        return result

    def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
        deadline: Deadline[K] = None,
        spare: Spare | None = None,
    ) -> Iterator[tuple[K, T | ShardqError]]:
        for key, result in self._driver.call_all(calls, timeout=timeout, deadline=deadline, spare=spare):
            self._note(result)
            yield key, result

    def confirm(self, seals: Sequence[Call[None]], deadline: float = math.inf, *, disk: bool = False) -> Histories:
        return self._driver.confirm(seals, deadline, disk=disk)

    def _note(self, result: object) -> None:
        self.requests += 1
        if isinstance(result, IdPage | ReadyPage):
            self.looked_at.append(result.looked_at)


@pytest.fixture
def many(url: str, name: str) -> Iterator[Engine]:
    """As ``patient``, and for threads alone."""
    with Engine(url, name=name, shards=SHARDS, timeout=60.0) as engine:
        yield engine


@pytest.mark.parametrize("url", ["cluster"], indirect=True)
@pytest.mark.parametrize("state", ["scheduled", "ready"])
def test_the_work_of_a_page_is_bounded(many: Engine, state: str) -> None:
    """Whatever is asked for, also if there is none of it. A driver for threads reads, and counts."""
    many.push_many([Task(n, at=FAR + n if state == "scheduled" else None, topic="mail") for n in range(COUNT)])
    if state == "ready":
        many.start()
        wait_until(lambda: many.stats().ready == COUNT, "all are ready")
        many.stop()
    cache, raw = TopologyCache(many.name, many.topology), codec_named("json")
    shards = len(cache.span())
    with connected(EngineAccess(many).options) as driver:
        for topic, limit in ((None, 1), (None, 100), (None, 1000), ("mail", 100), ("none", 100)):
            query, cursor, calls, found = Query.checked(state=state, topic=topic), None, 0, 0
            while calls < 30:
                counting = Counting(driver)
                page = run(counting, pages.task_page(cache, query, cursor, limit, raw))
                calls, found, cursor = calls + 1, found + len(page), page.cursor
                assert len(page) <= limit
                # a look at each shard, its topics and its records; for ready ones also which lists are not empty
                assert counting.requests <= (5 if state == "ready" else 3) * shards
                # never more than a page's share of each shard, or 1,000 ids
                most = 1000 if topic == "none" else min(limit, 2 * limit // shards + pages.SPARE)
                assert max(counting.looked_at) <= (limit if state == "ready" else most)
                if cursor is None:
                    break
            if topic == "none":
                assert (found, cursor) == (0, None)
                assert calls <= COUNT // 1000 + 2
            else:
                assert found == min(COUNT, 30 * limit)


@pytest.mark.parametrize("url", ["cluster"], indirect=True)
def test_lists_that_are_empty_cost_a_page_next_to_nothing(many: Engine) -> None:
    """Where each customer has a topic, most have nothing ready."""
    many.push_many([Task(n, topic=f"t{n * 1000}") for n in range(5)])
    many.start()
    wait_until(lambda: many.stats().ready == 5, "all are ready")
    many.stop()
    cache, raw = TopologyCache(many.name, many.topology), codec_named("json")
    with connected(EngineAccess(many).options) as driver:
        names = [word for n in range(5000) for word in (f"t{n}", 1)]
        for keys in cache.span():
            driver.call(Command(keys.slot, ("HSET", keys.topics, *names), int))
        counting = Counting(driver)
        page = run(counting, pages.task_page(cache, Query.checked(state="ready"), None, 20, raw))
    assert [sorted(task.payload for task in page), page.cursor] == [[*range(5)], None]
    assert counting.requests < SHARDS * 5000 / 20
