"""Handlers of batches, on both engines' workers: what a call gets, and what becomes of each delivery."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

import shardq
from shardq import Backoff, Batch, Bury, Delivery, Engine, Hold, Retry, Snooze, Task
from shardq.errors import BadInput
from tests.support.engines import Engines
from tests.support.states import FAR_S, counted, make_ready, state_of
from tests.support.waiting import wait_until
from tests.worker.flavours import Flavour

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)

SOON = Backoff(base=0.01, cap=0.02)


def handler(flavour: Flavour, function: Callable[[Batch[Any]], Any]) -> Callable[[Batch[Any]], Any]:
    """The function, or a coroutine function that does the same."""
    if flavour == "function":
        return function

    async def coroutine(batch: Batch[Any]) -> Any:
        return function(batch)

    return coroutine


def empty(engine: Engine) -> bool:
    stats = counted(engine)
    return (stats.scheduled, stats.ready, stats.leased) == (0, 0, 0)


def reason(engine: Engine, id: str) -> str | None:
    """Why it is dead; None while it is not."""
    task = engine.get(id)
    return task.reason if task is not None and task.state == "dead" else None


def test_all_are_done_when_it_returns(engines: Engines, running: Engine, flavour: Flavour) -> None:
    calls: list[list[int]] = []
    worker = running.worker(concurrency=4)
    worker.on("", batch=100)(handler(flavour, lambda batch: calls.append(batch.payloads)))
    make_ready(running, 1000, topic="")
    with engines.working(worker):
        wait_until(lambda: empty(running), "all are handled and acknowledged")
    assert Counter(payload for call in calls for payload in call) == dict.fromkeys(range(1000), 1)
    assert max(map(len, calls)) == 100
    assert len(calls) < 60


def test_what_a_batch_is(engines: Engines, running: Engine, flavour: Flavour) -> None:
    seen: list[Batch[Any]] = []
    here: list[object] = []

    def handle(batch: Batch[Any]) -> None:
        seen.append(batch)
        here.append(shardq.current())
        with batch.attempt(batch[1]):
            here.append(shardq.current())
        here.append(shardq.current())

    make_ready(running, 3, topic="events")
    worker = running.worker()
    worker.on("events", batch=10)(handler(flavour, handle))
    with engines.working(worker):
        wait_until(lambda: empty(running), "they are handled")
    batch = seen[0]
    if len(batch) == 3:
        assert sorted(batch.payloads) == [0, 1, 2]
    assert isinstance(batch, Sequence)
    assert batch.topic == "events"
    assert all(isinstance(each, Delivery) for each in batch)
    assert batch[0] == next(iter(batch)) == batch[0:2][0]
    assert here[:3] == [batch, batch[1], batch]
    assert batch.lost == []
    assert batch.ack(batch[0]) is False, "it has an end"
    assert repr(batch) == f"<Batch of {len(batch)} from topic 'events'>"


def test_single_verdicts(engines: Engines, running: Engine, flavour: Flavour) -> None:
    words = ["ack", "retry", "bury", "snooze", "raise", "raise bury", "returned", "wrong"]
    said: dict[str, Any] = {}
    calls: list[list[str]] = []

    def handle(batch: Batch[str]) -> None:
        calls.append(batch.payloads)
        for delivery in batch:
            match delivery.payload:
                case "ack":
                    said["ack"] = batch.ack(delivery), batch.retry(delivery)
                case "retry":
                    said["retry"] = batch.retry(delivery, delay=FAR_S, reason="later"), batch.ack(delivery)
                case "bury":
                    said["bury"] = batch.bury(delivery, "of no use")
                case "snooze":
                    said["snooze"] = batch.snooze(delivery, FAR_S)
                case "raise":
                    with batch.attempt(delivery):
                        raise ValueError("of its own")
                case "raise bury":
                    with batch.attempt(delivery):
                        raise Bury("refused")
                case "wrong":
                    for strange in (7, delivery.id, msgspec.structs.replace(delivery, token="another")):
                        with pytest.raises(BadInput, match="is not in this batch"):
                            batch.ack(strange)  # type: ignore[arg-type]

    ids = dict(zip(words, running.push_many([Task(word, topic="events") for word in words]), strict=True))
    wait_until(lambda: counted(running).ready == len(words), "they are ready")
    worker = running.worker(backoff=Backoff(base=FAR_S, cap=FAR_S))
    worker.on("events", batch=10)(handler(flavour, handle))
    with engines.working(worker):
        wait_until(lambda: counted(running).ready == counted(running).leased == 0, "all are settled")
    assert said == {"ack": (True, False), "retry": (True, False), "bury": True, "snooze": True}
    states = {word: state_of(running, id) for word, id in ids.items()}
    assert states == {
        "ack": "gone",
        "retry": "scheduled",
        "bury": "dead",
        "snooze": "scheduled",
        "raise": "scheduled",
        "raise bury": "dead",
        "returned": "gone",
        "wrong": "gone",
    }
    failures = {word: task.failures for word, id in ids.items() if (task := running.get(id)) is not None}
    assert failures == {"retry": 1, "bury": 1, "snooze": 0, "raise": 1, "raise bury": 1}
    assert sorted(word for call in calls for word in call) == sorted(words), "none was called twice"


def test_what_is_decided_is_settled_while_the_handler_runs(engines: Engines, running: Engine) -> None:
    settled, go_on = threading.Event(), threading.Event()
    ids = running.push_many([Task(n, topic="events") for n in range(2)])
    wait_until(lambda: counted(running).ready == 2, "they are ready")
    worker = running.worker()

    @worker.on("events", batch=10)
    def handle(batch: Batch[Any]) -> None:
        batch.ack(batch[0])
        settled.set()
        go_on.wait(30)

    with engines.working(worker):
        wait_until(settled.is_set, "it has decided")
        wait_until(
            lambda: sorted(state_of(running, id) for id in ids) in (["gone", "leased"], ["gone", "gone"]), "it is gone"
        )
        go_on.set()
        wait_until(lambda: empty(running), "the other is done")


def test_a_poisoned_task_is_found(engines: Engines, running: Engine, flavour: Flavour) -> None:
    attempts: Counter[int] = Counter()
    calls: list[int] = []

    def handle(batch: Batch[int]) -> None:
        calls.append(len(batch))
        for delivery in batch:
            attempts[delivery.payload] = max(attempts[delivery.payload], delivery.attempt)
        if 77 in batch.payloads:
            raise ValueError("it is 77")

    ids = running.push_many([Task(n, topic="events") for n in range(200)])
    wait_until(lambda: counted(running).ready == 200, "they are ready")
    worker = running.worker(backoff=SOON, concurrency=1)
    worker.on("events", batch=200, max_attempts=2)(handler(flavour, handle))
    with engines.working(worker):
        wait_until(lambda: empty(running), "each has an end")
    assert "it is 77" in (reason(running, ids[77]) or "")
    assert counted(running).dead == 1
    assert {payload for payload, attempt in attempts.items() if attempt > 1} == {77}, "no other has lost an attempt"
    assert len(calls) <= 40


def test_without_isolation_all_of_them_fail(engines: Engines, running: Engine, flavour: Flavour) -> None:
    calls: list[int] = []

    def handle(batch: Batch[int]) -> None:
        calls.append(len(batch))
        raise ValueError("one of them")

    ids = running.push_many([Task(n, topic="events") for n in range(20)])
    wait_until(lambda: counted(running).ready == 20, "they are ready")
    worker = running.worker(backoff=Backoff(base=FAR_S, cap=FAR_S), concurrency=1)
    worker.on("events", batch=20, isolate=False)(handler(flavour, handle))
    with engines.working(worker):
        wait_until(lambda: counted(running).scheduled == 20, "they wait for their second attempt")
    assert sum(calls) == 20, "no call was repeated"
    dues = {task.due for id in ids if (task := running.get(id)) is not None}
    assert len(dues) <= 2 * len(calls) * 4, "those of a call come back together"


def test_an_outage_fails_each_once(engines: Engines, running: Engine) -> None:
    calls: list[int] = []
    ids = running.push_many([Task(n, topic="events") for n in range(64)])
    wait_until(lambda: counted(running).ready == 64, "they are ready")
    worker = running.worker(backoff=Backoff(base=FAR_S, cap=FAR_S), concurrency=1)

    @worker.on("events", batch=64)
    def handle(batch: Batch[int]) -> None:
        calls.append(len(batch))
        raise OSError("the database is down")

    with engines.working(worker):
        wait_until(lambda: counted(running).scheduled == 64, "they wait")
    assert {task.failures for id in ids if (task := running.get(id)) is not None} == {1}
    assert len(calls) <= 5 * 4, "five calls for a batch, of which each shard may have given one"


@pytest.mark.parametrize(
    ("raised", "state", "failures"),
    [(Retry(FAR_S, "later"), "scheduled", 1), (Bury("no use"), "dead", 1), (Snooze(FAR_S), "scheduled", 0)],
    ids=["retry", "bury", "snooze"],
)
def test_a_decision_that_is_raised_is_about_all(
    engines: Engines, running: Engine, flavour: Flavour, raised: Exception, state: str, failures: int
) -> None:
    calls: list[int] = []

    def handle(batch: Batch[int]) -> None:
        calls.append(len(batch))
        raise raised

    ids = running.push_many([Task(n, topic="events") for n in range(8)])
    wait_until(lambda: counted(running).ready == 8, "they are ready")
    worker = running.worker()
    worker.on("events", batch=8)(handler(flavour, handle))
    with engines.working(worker):
        wait_until(lambda: {state_of(running, id) for id in ids} == {state}, "all of them are that")
    assert sum(calls) == 8, "no call was repeated"
    assert {task.failures for id in ids if (task := running.get(id)) is not None} == {failures}


def test_a_hold_pauses_the_topic_without_an_attempt(engines: Engines, running: Engine) -> None:
    calls: list[int] = []
    worker = running.worker()

    @worker.on("events", batch=8)
    def handle(batch: Batch[int]) -> None:
        calls.append(len(batch))
        try:
            raise sqlite3.OperationalError("database is locked") if len(calls) == 1 else OSError
        except sqlite3.OperationalError:
            raise Hold(1) from None
        except OSError:
            return

    make_ready(running, 8, topic="events")
    with engines.working(worker):
        wait_until(lambda: empty(running), "they are done after the hold")
    assert counted(running).dead == 0


def test_a_list_says_it_of_each(engines: Engines, running: Engine, flavour: Flavour) -> None:
    def handle(batch: Batch[int]) -> list[BaseException | None]:
        return [Bury("it is odd") if payload % 2 else None for payload in batch.payloads]

    ids = running.push_many([Task(n, topic="events") for n in range(6)])
    worker = running.worker()
    worker.on("events", batch=6)(handler(flavour, handle))
    with engines.working(worker):
        wait_until(lambda: empty(running), "each has an end")
    assert [state_of(running, id) for id in ids] == ["gone", "dead"] * 3


@pytest.mark.parametrize("result", [3, "done", [None], [1, 2, 3, 4, 5, 6], {}, True])
def test_another_result_is_an_error(
    engines: Engines, running: Engine, result: object, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[int] = []
    worker = running.worker(backoff=Backoff(base=FAR_S, cap=FAR_S))

    @worker.on("events", batch=6)
    def handle(batch: Batch[int]) -> object:
        calls.append(len(batch))
        return result if len(batch) > 1 else 7

    make_ready(running, 6, topic="events")
    with engines.working(worker), caplog.at_level(logging.ERROR):
        wait_until(lambda: counted(running).scheduled == 6, "they have failed")
    assert sum(calls) == 6, "it is not called again with parts"
    assert "returns nothing, which says that all are done, or a list with None or an exception for each" in caplog.text


class Event(msgspec.Struct):
    number: int


def test_payloads_of_a_type(engines: Engines, running: Engine, flavour: Flavour) -> None:
    seen: list[Event] = []
    worker = running.worker()
    worker.on("events", batch=10, type=Event, max_attempts=1)(
        handler(flavour, lambda batch: seen.extend(batch.payloads))
    )
    ids = running.push_many([Task({"number": n if n != 2 else "two"}, topic="events") for n in range(5)])
    with engines.working(worker):
        wait_until(lambda: empty(running), "each has an end")
    assert sorted(event.number for event in seen) == [0, 1, 3, 4]
    assert "does not take this payload" in (reason(running, ids[2]) or "")
    assert counted(running).dead == 1, "the one that does not fit fails alone"


def test_a_call_that_times_out(engines: Engines, running: Engine, flavour: Flavour) -> None:
    released = threading.Event()
    worker = running.worker(backoff=Backoff(base=FAR_S, cap=FAR_S))
    done: list[int] = []

    def hang(batch: Batch[int]) -> None:
        for delivery in batch:
            if delivery.payload == 0:
                batch.ack(delivery)
        done.append(len(batch))
        released.wait(30)

    if flavour == "coroutine":

        @worker.on("events", batch=6, timeout=0.3)
        async def handle(batch: Batch[int]) -> None:
            for delivery in batch:
                if delivery.payload == 0:
                    batch.ack(delivery)
            await asyncio.sleep(30)

    else:
        worker.on("events", batch=6, timeout=0.3)(hang)
    ids = running.push_many([Task(n, topic="events") for n in range(6)])
    with engines.working(worker):
        try:
            wait_until(lambda: counted(running).scheduled == 5, "what was not decided has failed")
            wait_until(lambda: state_of(running, ids[0]) == "gone", "so is the ack of what was")
            if flavour == "function":
                wait_until(lambda: sum(worker.strays.values()) >= 1, "its thread is known to go on")
        finally:
            released.set()
        wait_until(lambda: not worker.strays, "its thread has ended")
    assert {task.failures for id in ids[1:] if (task := running.get(id)) is not None} == {1}


def test_a_half_that_hangs_costs_the_other_half_nothing(engines: Engines, running: Engine, flavour: Flavour) -> None:
    """The first call raises, and the next, with half of its tasks, takes too long."""
    released, hung = threading.Event(), list[int]()

    def handle(batch: Batch[int]) -> bool:
        if hung:
            return False
        if len(batch) > 4:
            raise ValueError("one of them")
        hung.extend(batch.payloads)
        return True

    worker = running.worker(backoff=Backoff(base=FAR_S, cap=FAR_S), concurrency=1)
    if flavour == "coroutine":

        @worker.on("events", batch=8, timeout=0.5)
        async def waits(batch: Batch[int]) -> None:
            if handle(batch):
                await asyncio.sleep(60)

    else:

        @worker.on("events", batch=8, timeout=0.5)
        def blocks(batch: Batch[int]) -> None:
            if handle(batch):
                released.wait(60)

    ids = running.push_many([Task(n, topic="events") for n in range(8)])
    wait_until(lambda: counted(running).ready == 8, "they are ready")
    try:
        with engines.working(worker):
            wait_until(lambda: sum(state_of(running, id) == "gone" for id in ids) == 8 - len(hung), "others are done")
            released.set()
    finally:
        released.set()
    states = [state_of(running, id) for id in ids]
    assert states.count("scheduled") == len(hung) > 0, "those of the call that hung have failed, and no others"


def test_a_call_whose_leases_are_all_lost_is_cancelled(engines: Engines, running: Engine, other: Engine) -> None:
    begun, cancelled = threading.Event(), threading.Event()
    worker = running.worker(lease=1.5)
    running.push("first", topic="events", id="one")

    @worker.on("events", batch=2)
    async def waits(batch: Batch[Any]) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with engines.working(worker):
        wait_until(begun.is_set, "it runs")
        other.push("second", topic="events", id="one", on_conflict="replace", delay=FAR_S)
        wait_until(cancelled.is_set, "nobody waits for what it does")


def test_a_lost_lease_leaves_the_batch(engines: Engines, running: Engine, other: Engine, flavour: Flavour) -> None:
    begun, lost = threading.Event(), list[Any]()
    worker = running.worker(lease=1.5, concurrency=1)
    ids = running.push_many([Task("first", topic="events", id="one"), Task("other", topic="events")])
    wait_until(lambda: counted(running).ready == 2, "they are ready")

    def handle(batch: Batch[Any]) -> None:
        if "first" in batch.payloads:
            first = batch[batch.payloads.index("first")]
            begun.set()
            wait_until(lambda: [first] == list(batch.lost), "the worker has heard of it, as it extends leases")
            lost.append(batch.ack(first))

    if flavour == "coroutine":

        @worker.on("events", batch=2)
        async def waits(batch: Batch[Any]) -> None:
            await asyncio.to_thread(handle, batch)

    else:
        worker.on("events", batch=2)(handle)
    with engines.working(worker):
        wait_until(begun.is_set, "it runs")
        other.push("second", topic="events", id="one", on_conflict="replace", delay=FAR_S)
        wait_until(lambda: state_of(running, ids[1]) == "gone", "the other is done")
        wait_until(lambda: counted(running).leased == 0, "nothing is leased")
    task = running.get(ids[0])
    assert task is not None
    assert (task.payload, task.failures) == ("second", 0), "the newer one is not settled by the old lease"
    assert lost in ([False], []), "a call all of whose leases are lost is cancelled"


def test_hooks_are_called_for_each(engines: Engines, running: Engine, flavour: Flavour) -> None:
    heard: Counter[str] = Counter()
    asked: list[bool] = []

    class Hooks:
        def before(self, delivery: Delivery) -> None:
            heard["before"] += 1
            asked.append(shardq.current() is delivery or shardq.current() == delivery)

        def after(self, delivery: Delivery) -> None:
            heard["after"] += 1

        def error(self, delivery: Delivery, exc: BaseException) -> None:
            heard["error"] += 1

    def handle(batch: Batch[int]) -> None:
        for delivery in batch:
            if delivery.payload == 3:
                batch.bury(delivery, "no use")

    worker = running.worker()
    worker.use(Hooks())
    worker.on("events", batch=6)(handler(flavour, handle))
    make_ready(running, 6, topic="events")
    with engines.working(worker):
        wait_until(lambda: empty(running), "each has an end")
    assert heard == {"before": 6, "after": 5, "error": 1}
    assert all(asked)


def test_no_more_calls_at_once_than_it_says(engines: Engines, running: Engine, flavour: Flavour) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def handle(batch: Batch[int]) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1

    worker = running.worker(concurrency=8)
    worker.on("events", batch=5, concurrency=2)(handler(flavour, handle))
    make_ready(running, 60, topic="events")
    with engines.working(worker):
        wait_until(lambda: empty(running), "all are done")
    assert most[0] == (2 if flavour == "function" else 1), "a coroutine that does not wait has the loop for itself"


def test_beside_single_handlers_both_go_on(engines: Engines, running: Engine) -> None:
    single, batched = Counter[int](), Counter[int]()
    worker = running.worker(concurrency=2)

    @worker.on("mail")
    def mail(delivery: Delivery) -> None:
        single[delivery.payload] += 1
        time.sleep(0.001)

    @worker.on("events", batch=50)
    def store(batch: Batch[int]) -> None:
        batched.update(batch.payloads)

    running.push_many([Task(n, topic="mail") for n in range(500)])
    running.push_many([Task(n, topic="events") for n in range(500)])
    with engines.working(worker):
        wait_until(lambda: empty(running), "all are done")
    assert single == batched == dict.fromkeys(range(500), 1)


def test_what_a_worker_gives_back_when_it_stops(engines: Engines, running: Engine, flavour: Flavour) -> None:
    begun = threading.Event()
    released = threading.Event()
    worker = running.worker(grace=0.2, concurrency=1)
    if flavour == "coroutine":

        @worker.on("events", batch=10)
        async def wait(batch: Batch[int]) -> None:
            batch.ack(batch[0])
            begun.set()
            await asyncio.sleep(60)

    else:

        @worker.on("events", batch=10)
        def block(batch: Batch[int]) -> None:
            batch.ack(batch[0])
            begun.set()
            released.wait(60)

    make_ready(running, 10, topic="events")
    try:
        with engines.working(worker):
            wait_until(begun.is_set, "a call has begun")
    finally:
        released.set()
    wait_until(lambda: counted(running).leased == 0, "nothing is leased")
    stats = counted(running)
    assert stats.ready + stats.scheduled == 9, "one is done, and the others are ready again"
    tasks = list(running.tasks("events", state="ready"))
    assert {(task.failures, task.lapses) for task in tasks} == {(0, 0)}
