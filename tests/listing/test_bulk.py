"""cancel_all, requeue_all and reschedule_all: what they change, that they end, and that nothing is missed."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pytest

from shardq import BulkResult, Engine, Outcome, ShardqError, Task
from shardq.core.calls.request import Call, Command
from shardq.core.drivers.retry import Deadline, Spare
from shardq.core.drivers.sync import Driver
from shardq.core.model.task import State
from shardq.core.operation import Histories, run
from shardq.core.topology_cache import TopologyCache
from shardq.engine.access import EngineAccess
from shardq.engine.wiring import connected
from shardq.features.listing import pages
from shardq.features.listing.bulk import Bulk, bulk_query
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, counted, put, state_of
from tests.support.waiting import wait_until

K = TypeVar("K")
T = TypeVar("T")

AT = dt.datetime(2040, 1, 1, tzinfo=dt.UTC)

ORDER: tuple[State, ...] = ("scheduled", "leased", "dead", "ready")
"""A ready task comes last: the next of its topic would be claimed with it."""


def test_cancelling_what_matches(running: Engine) -> None:
    ids = {(state, topic): put(running, state, topic=topic) for topic in ("mail", "sms") for state in ORDER}
    assert running.cancel_all(topic="mail", state="dead") == BulkResult(matched=1, done=1)
    assert running.cancel_all(topic="mail", dry_run=True) == BulkResult(matched=2, done=0)
    assert running.cancel_all(topic="mail") == BulkResult(matched=2, done=2)
    assert running.cancel_all(due=(None, 1.0)) == BulkResult(matched=0, done=0)
    assert {key: state_of(running, id) for key, id in ids.items()} == {
        (state, topic): state if topic == "sms" or state == "leased" else "gone" for state, topic in ids
    }
    assert running.cancel_all(everything=True).done == 3


def test_how_far_it_came_and_an_end_in_between(engine: Engine) -> None:
    engine.push_many([Task(n, delay=FAR_S) for n in range(3000)])
    seen: list[BulkResult] = []

    class Enough(Exception):
        pass

    def note(so_far: BulkResult) -> None:
        seen.append(so_far)
        if so_far.done >= 1000:
            raise Enough

    with pytest.raises(Enough):
        engine.cancel_all(everything=True, progress=note)
    assert 1000 <= seen[-1].done == 3000 - counted(engine).scheduled < 3000
    assert engine.cancel_all(everything=True).done == 3000 - seen[-1].done
    assert counted(engine).scheduled == 0


class Between:
    """Carries requests; ``act`` happens before the first command of a page is sent."""

    def __init__(self, driver: Driver, act: Callable[[], object]) -> None:
        self._driver = driver
        self._act = act

    def call(self, call: Command[T], timeout: float | None = None, deadline: float | None = None) -> T:
        if isinstance(call, Call) and call.script.name == "cancel":
            self._act()
        return self._driver.call(call, timeout, deadline)

    def call_all(
        self,
        calls: Iterable[tuple[K, Command[T]]],
        *,
        timeout: float | None = None,
        deadline: Deadline[K] = None,
        spare: Spare | None = None,
    ) -> Iterator[tuple[K, T | ShardqError]]:
        calls = list(calls)
        if any(isinstance(call, Call) and call.script.name == "cancel" for _, call in calls):
            self._act()
        return self._driver.call_all(calls, timeout=timeout, deadline=deadline, spare=spare)

    def confirm(self, seals: Sequence[Call[None]], deadline: float = math.inf, *, disk: bool = False) -> Histories:
        return self._driver.confirm(seals, deadline, disk=disk)


def test_a_task_that_is_leased_meanwhile_is_left_alone(running: Engine) -> None:
    ids = [put(running, "ready", topic="mail") for _ in range(3)]
    consumer, leased = running.consumer("mail"), list[str]()

    def lease_one() -> None:
        if not leased:
            leased.extend(delivery.id for delivery in claim(consumer, 1))

    bulk = Bulk(TopologyCache(running.name, running.topology), "cancel", bulk_query("cancel", topic="mail"))
    with connected(EngineAccess(running).options) as driver:
        while run(Between(driver, lease_one), bulk.following()):
            pass
    assert bulk.so_far == BulkResult(matched=3, done=2, others={Outcome.RUNNING: 1}, running=tuple(leased))
    assert not bulk.so_far
    assert [state_of(running, id) for id in ids if id not in leased] == ["gone", "gone"]
    assert state_of(running, leased[0]) == "leased"


def test_rescheduling(running: Engine) -> None:
    ready = put(running, "ready", topic="mail")
    far = running.push_many([Task(n, delay=FAR_S + n, topic="mail") for n in range(1500)])
    other = running.push("x", delay=FAR_S)
    assert running.reschedule_all(topic="mail", at=AT) == BulkResult(matched=1501, done=1501)
    tasks = listed(running, state="scheduled", topic="mail", limit=1000)
    assert {task.due for task in tasks} == {AT}
    assert {task.id for task in tasks} == {ready, *far}
    task = running.get(other)
    assert task is not None
    assert task.due != AT
    # those that are due then already need nothing
    assert running.reschedule_all(topic="mail", at=AT) == BulkResult(matched=0, done=0)


def test_rescheduling_by_a_delay_ends(engine: Engine) -> None:
    """What is moved comes later in the order: it must not be moved again and again."""
    engine.push_many([Task(n, delay=1) for n in range(1500)])
    assert engine.reschedule_all(everything=True, delay=3600) == BulkResult(matched=1500, done=1500)
    assert len({task.due for task in listed(engine, limit=1000)}) == 1


def test_rescheduling_what_comes_back_at_once_ends(running: Engine) -> None:
    """Tasks that are rescheduled become ready again while the command runs."""
    running.push_many([Task(n) for n in range(1500)])
    wait_until(lambda: running.stats().ready == 1500, "all are ready")
    assert running.reschedule_all(state="ready", delay=0.001).done == 1500
    assert running.reschedule_all(state="ready", delay=0) == BulkResult(matched=0, done=0)
    wait_until(lambda: running.stats().scheduled == 0, "all are ready again")
    assert len(claim(running.consumer(), 1500)) == 1500


def test_one_filter_for_all(running: Engine) -> None:
    """A tag goes with all else of the filter, in every command and list; everything=True stands alone."""
    for topic in ("mail", "sms"):
        for tag in ("red", "blue"):
            running.push_many([Task(n, delay=FAR_S, topic=topic, tags=[tag, "any"]) for n in range(3)])
            put(running, "dead", topic=topic, tags=[tag, "any"])
    assert len(listed(running, tag="any", everything=False)) == 16
    assert {task.topic for task in listed(running, tag="red", topic="sms")} == {"sms"}
    assert [task.tags for task in running.dead("mail", tag="blue")] == [("blue", "any")]
    assert len(list(running.dead(everything=True))) == 4
    assert running.cancel_all(tag="red", dry_run=True).matched == 8
    assert running.cancel_all("sms", tag="red", state="scheduled").done == 3
    assert running.reschedule_all("mail", tag="red", at=AT).done == 3
    assert running.requeue_all(tag="blue", dry_run=True).matched == 2
    assert running.purge(tag="red", state="dead") == 2
    assert running.purge(state="dead") == 2
    assert (running.purge(tag="red"), running.purge("sms"), running.purge(everything=True)) == (3, 3, 3)


@pytest.mark.slow
def test_a_ready_task_counts_once_however_often_it_stands_in_its_list(running: Engine) -> None:
    """Each time that a ready task is rescheduled it leaves an entry behind in its list."""
    running.push_many([Task(n) for n in range(1500)])
    for _ in range(3):
        wait_until(lambda: running.stats().ready == 1500, "all are ready")
        assert running.reschedule_all(state="ready", delay=0.001) == BulkResult(matched=1500, done=1500)
    wait_until(lambda: running.stats().scheduled == 0, "all are ready again")
    assert running.stats().ready == 1500
    assert running.cancel_all(state="ready", dry_run=True).matched == 1500
    assert running.cancel_all(state="ready") == BulkResult(matched=1500, done=1500)
    assert running.stats().ready == 0
    assert running.stats().topics[""].ready == 0


def test_what_falls_due_again_before_the_ready_ones_are_met_counts_once(running: Engine) -> None:
    running.push_many([Task(n, delay=FAR_S) for n in range(1500)])
    bulk = Bulk(
        TopologyCache(running.name, running.topology),
        "reschedule",
        bulk_query("reschedule", state=None, topic=""),
        due=-1,
    )
    with connected(EngineAccess(running).options) as driver:
        while run(driver, bulk.following()):
            wait_until(lambda: running.stats().ready == bulk.so_far.done, "what was rescheduled is ready")
    assert bulk.so_far == BulkResult(matched=1500, done=1500)


@pytest.mark.parametrize("state", ["scheduled", "dead"])
def test_none_is_missed_where_a_resize_ends_between_a_page_and_its_records(running: Engine, state: State) -> None:
    ids = running.push_many([Task(n, delay=FAR_S if state == "scheduled" else 0, tags=["red"]) for n in range(300)])
    if state == "dead":
        consumer = running.consumer()
        for delivery in claim(consumer, len(ids)):
            consumer.bury(delivery, "of no use")
    cache = TopologyCache(running.name, running.topology)
    query = bulk_query("cancel", state=state)
    with connected(EngineAccess(running).options) as driver:
        entries, _ = run(driver, pages.following(cache, query, query.first, 1000))
        assert {entry.id for entry in entries} == set(ids)
        running.resize(running.topology.shards * 4)
        wait_until(lambda: not running.topology.priors and not running.topology.pending, "all have moved", timeout=60)
        found = run(driver, pages.stored(cache, entries))
        bulk = Bulk(TopologyCache(running.name, cache.topology), "requeue", query, reason="of no use")
        of_reason = run(driver, bulk._of_reason(entries, "of no use"))
    assert [id for id, task in found.items() if task is None] == []
    assert len(of_reason) == (len(ids) if state == "dead" else 0)
