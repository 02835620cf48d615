"""A running worker, on threads and on asyncio, with functions and with coroutines, settles every delivery once."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Any

import pytest

from shardq import Backoff, Bury, Delivery, Engine, Retry, Snooze, Task
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.states import FAR_S, claim, counted, state_of
from tests.support.waiting import wait_until
from tests.worker.flavours import Flavour, Gate, handler

SOON = Backoff(base=0.01, cap=0.02)


def empty(engine: Engine) -> bool:
    stats = counted(engine)
    return (stats.scheduled, stats.ready, stats.leased) == (0, 0, 0)


def dead(engine: Engine, id: str) -> str | None:
    """Why it is dead; None while it is not."""
    task = engine.get(id)
    return task.reason if task is not None and task.state == "dead" else None


def claims_no_more() -> bool:
    """Whether the worker's thread for that has ended: until then one that was told to stop may not know it."""
    return not any(thread.name == "shardq-fetch" for thread in threading.enumerate())


def due_again(engine: Engine, id: str) -> float:
    """When a failed task is due again; 0 while it has not failed."""
    task = engine.get(id)
    return task.due.timestamp() if task is not None and task.due is not None and task.failures else 0


def test_every_task_is_handled_once(engines: Engines, running: Engine, flavour: Flavour) -> None:
    handled: Counter[int] = Counter()
    worker = running.worker(concurrency=8)
    worker.on("")(handler(flavour, lambda delivery: handled.update([delivery.payload])))
    running.push_many([Task(n) for n in range(500)])
    with engines.working(worker):
        wait_until(lambda: handled.total() == 500 and empty(running), "all are handled and acknowledged")
    assert handled == dict.fromkeys(range(500), 1)
    assert counted(running).dead == 0


def test_functions_and_coroutines_side_by_side(engines: Engines, running: Engine) -> None:
    where: dict[str, str] = {}
    worker = running.worker()

    @worker.on("mail")
    def send(delivery: Delivery) -> None:
        where[delivery.topic] = threading.current_thread().name

    @worker.on("fetch")
    async def fetch(delivery: Delivery) -> None:
        await asyncio.sleep(0)
        where[delivery.topic] = threading.current_thread().name

    running.push_many([Task(1, topic="mail"), Task(2, topic="fetch")])
    with engines.working(worker):
        wait_until(lambda: len(where) == 2 and empty(running), "both are handled")
    own = "loop" if engines.kind == "asyncio" else "shardq-coroutines"
    assert where == {"mail": "shardq-handler", "fetch": own}


def test_a_failure_is_tried_again_after_the_backoff(engines: Engines, running: Engine, flavour: Flavour) -> None:
    attempts: list[tuple[int, int, int]] = []

    def fail_twice(delivery: Delivery) -> None:
        attempts.append((delivery.attempt, delivery.failures, delivery.lapses))
        if delivery.attempt < 3:
            raise ValueError("not yet")

    worker = running.worker(backoff=SOON)
    worker.on("")(handler(flavour, fail_twice))
    with engines.working(worker):
        id = running.push("x")
        wait_until(lambda: state_of(running, id) == "gone", "the third attempt is good")
    assert attempts == [(1, 0, 0), (2, 1, 0), (3, 2, 0)]


def test_the_last_attempt_ends_in_death_with_the_end_of_the_traceback(
    engines: Engines, running: Engine, flavour: Flavour
) -> None:
    def divide(delivery: Delivery) -> float:
        return float(delivery.payload / 0)

    worker = running.worker(backoff=SOON)
    worker.on("", max_attempts=2)(handler(flavour, divide))
    with engines.working(worker):
        id, own = running.push(5), running.push(5, max_attempts=1)
        wait_until(lambda: dead(running, id) and dead(running, own), "both are dead")
    task, strict = running.get(id), running.get(own)
    assert task is not None
    assert strict is not None
    assert (task.failures, strict.failures) == (2, 1)
    lines = str(task.reason).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "return float(delivery.payload / 0)" in lines[-2] or "return float(delivery.payload / 0)" in lines[-3]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_handler_may_decide_for_itself(engines: Engines, running: Engine, flavour: Flavour) -> None:
    def decide(delivery: Delivery) -> None:
        raise {"later": Retry(delay=FAR_S, reason="busy"), "never": Bury("of no use")}[delivery.payload]

    worker = running.worker(backoff=SOON)
    worker.on("")(handler(flavour, decide))
    with engines.working(worker):
        later, never = running.push("later"), running.push("never")
        wait_until(lambda: dead(running, never) == "of no use", "one is buried")
        # scheduled it is also before it was dispatched for the first time
        wait_until(lambda: due_again(running, later), "the other is put off")
    task = running.get(later)
    assert task is not None
    assert task.due is not None
    assert task.due.timestamp() > time.time() + FAR_S / 2
    assert (task.attempt, task.failures) == (2, 1)


def test_a_snooze_counts_no_attempt(
    engines: Engines, running: Engine, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler may snooze its task any number of times, also under ``max_attempts=1``."""
    seen: list[tuple[str, Any, int]] = []

    def not_yet(delivery: Delivery) -> None:
        seen.append((delivery.id, delivery.payload, delivery.attempt))
        if len(seen) <= 3:
            raise Snooze(0.01)

    heard: list[str] = []

    class Log:
        def after(self, delivery: Delivery) -> None:
            heard.append("after")

        def error(self, delivery: Delivery, exc: BaseException) -> None:
            heard.append("error")

    worker = running.worker(max_attempts=1)
    worker.use(Log())
    worker.on("")(handler(flavour, not_yet))
    with caplog.at_level(logging.INFO, logger="shardq"), engines.working(worker):
        id = running.push({"order": 42}, id="own")
        wait_until(lambda: running.get(id) is None, "it is done in the end")
    assert seen == [("own", {"order": 42}, 1)] * 4
    assert heard == ["after"] * 4
    said = [record.getMessage() for record in caplog.records if "own" in record.getMessage()]
    assert [text.partition(" is ")[2].split(":")[0] for text in said] == ["done"]


@pytest.mark.slow
def test_a_snooze_past_its_expiry_is_the_end(engines: Engines, running: Engine, flavour: Flavour) -> None:
    calls: list[str] = []

    def never(delivery: Delivery) -> None:
        calls.append(delivery.id)
        raise Snooze(0.05)

    worker = running.worker()
    worker.on("")(handler(flavour, never))
    with engines.working(worker):
        id = running.push("x", expires=1)
        wait_until(lambda: dead(running, id) == "expired", "it has expired")
    task = running.get(id)
    assert task is not None
    assert task.failures == 0
    assert calls


def test_a_timeout(engines: Engines, running: Engine, flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    """A coroutine is cancelled; a function's thread goes on, and what it says then counts no more."""
    gate, handled = Gate(flavour), list[str]()
    worker = running.worker(concurrency=1, max_attempts=1)
    worker.on("", timeout=0.2)(gate.handler)
    worker.on("next")(handler(flavour, lambda delivery: handled.append(delivery.id)))
    with engines.working(worker):
        id = running.push("x")
        wait_until(lambda: dead(running, id) == "timed out after 0.2 s", "it counts as failed")
        other = running.push("y", topic="next")
        wait_until(lambda: handled == [other], "its place is free again")
        gate.open()
        wait_until(lambda: gate.ended, "the handler has ended")
    assert gate.ended == ["open" if flavour == "function" else "cancelled"]
    assert dead(running, id) == "timed out after 0.2 s"
    assert caplog.text.count(f"task {id} ") == caplog.text.count(f"task {id} has timed out after 0.2 s") == 1
    assert "CancelledError" not in caplog.text


class Notes:
    """Middleware that writes down what it is called with."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def before(self, delivery: Delivery) -> None:
        self.said.append(("before", delivery.payload))

    def after(self, delivery: Delivery) -> None:
        self.said.append(("after", delivery.payload))

    def error(self, delivery: Delivery, exc: BaseException) -> None:
        self.said.append((f"error {exc}", delivery.payload))


class Broken:
    """Middleware whose every call fails."""

    def before(self, delivery: Delivery) -> None:
        raise SystemExit("of the hook")

    def after(self, delivery: Delivery) -> None:
        raise ValueError("of the hook")

    def error(self, delivery: Delivery, exc: BaseException) -> None:
        raise ValueError("of the hook")


def test_a_hook_that_nobody_would_await_is_refused(running: Engine) -> None:
    class Middleware:
        async def before(self, delivery: Delivery) -> None: ...

    with pytest.raises(InvalidOption, match=r"before of .* is a coroutine function"):
        running.worker().use(Middleware())


def test_stopped_before_it_runs_it_ends_at_once(engines: Engines, running: Engine) -> None:
    worker: Any = running.worker()
    worker.on("")(print)
    worker.stop()
    engines.done(worker.run())


def test_hooks(engines: Engines, running: Engine, flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    def handle(delivery: Delivery) -> None:
        if delivery.payload == "bad":
            raise ValueError("boom")

    notes = Notes()
    worker = running.worker(max_attempts=1)
    worker.use(Broken())  # what a hook raises changes nothing
    worker.use(notes)
    worker.on("")(handler(flavour, handle))
    with engines.working(worker):
        good, bad = running.push("good"), running.push("bad")
        wait_until(lambda: len(notes.said) == 4, "all hooks are called")
        wait_until(lambda: state_of(running, good) == "gone" and dead(running, bad), "both are settled")
    assert [name for name, payload in notes.said if payload == "good"] == ["before", "after"]
    assert [name for name, payload in notes.said if payload == "bad"] == ["before", "error boom"]
    assert "a before hook failed" in caplog.text


@pytest.mark.slow
def test_a_long_handler_keeps_its_lease(engines: Engines, running: Engine, flavour: Flavour) -> None:
    gate = Gate(flavour)
    # extended every second; none of that is missed because the machine stands still for a while
    worker = running.worker(lease=4.0)
    worker.on("")(gate.handler)
    with engines.working(worker):
        id = running.push("x")
        wait_until(lambda: gate.begun, "it runs")
        for _ in range(2):
            before = _deadline(running, id)
            assert before
            wait_until(lambda: _deadline(running, id) > before, "its lease is extended, and again")  # noqa: B023  called at once
        gate.open()
        wait_until(lambda: state_of(running, id) == "gone", "it is acknowledged")
    assert [delivery.attempt for delivery in gate.begun] == [1]
    assert sum(shard.reaped or 0 for shard in counted(running).shards) == 0


def _deadline(engine: Engine, id: str) -> float:
    task = engine.get(id)
    return task.deadline.timestamp() if task is not None and task.deadline is not None else 0.0


def test_a_worker_never_runs_more_than_it_may(engines: Engines, running: Engine, flavour: Flavour) -> None:
    lock, now, most, handled = threading.Lock(), 0, 0, 0

    def change(by: int) -> None:
        nonlocal now, most, handled
        with lock:
            now += by
            most = max(most, now)
            handled += by < 0

    # the first ones stay until every place is taken
    def block(delivery: Delivery) -> None:
        change(1)
        time.sleep(0.002)  # the work
        while most < 5:
            time.sleep(0.002)
        change(-1)

    async def wait(delivery: Delivery) -> None:
        change(1)
        await asyncio.sleep(0.002)
        while most < 5:  # noqa: ASYNC110  as simple as the other
            await asyncio.sleep(0.002)
        change(-1)

    worker = running.worker(concurrency=5)
    worker.on("")(block if flavour == "function" else wait)
    running.push_many([Task(n) for n in range(300)])
    with engines.working(worker):
        wait_until(lambda: handled == 300 and empty(running), "all are handled")
    assert most == 5


def test_stopping_finishes_what_runs_and_gives_back_the_rest(
    engines: Engines, running: Engine, flavour: Flavour
) -> None:
    gate = Gate(flavour)
    worker = running.worker(concurrency=2)
    worker.on("")(gate.handler)
    ids = running.push_many([Task(n) for n in range(10)])
    with engines.working(worker) as stop:
        wait_until(lambda: len(gate.begun) == 2, "two of them run")
        stop()
        wait_until(claims_no_more, "it claims no more")
        wait_until(lambda: counted(running).leased == 2, "no other is held")
        gate.open()
        # before the end of the block, which stops it again: that would be without grace
        wait_until(lambda: counted(running).leased == 0, "both are settled")
    assert len(gate.begun) == 2
    rest = [task for id in ids if (task := running.get(id))]
    assert len(rest) == 8
    assert {(task.state in ("ready", "scheduled"), task.attempt, task.failures) for task in rest} == {(True, 1, 0)}


@pytest.mark.parametrize("hurry", [False, True], ids=["grace is over", "told twice"])
def test_what_does_not_finish_is_given_back(engines: Engines, running: Engine, flavour: Flavour, hurry: bool) -> None:
    gate = Gate(flavour)
    worker = running.worker(grace=60 if hurry else 0.1)
    worker.on("")(gate.handler)
    with engines.working(worker) as stop:
        id = running.push("x")
        wait_until(lambda: gate.begun, "it runs")
        stop()
        if hurry:
            stop()
        wait_until(lambda: state_of(running, id) in ("ready", "scheduled"), "it is given back")
    gate.open()
    (delivery,) = claim(running.consumer(), 1)
    assert (delivery.attempt, delivery.failures, delivery.lapses) == (1, 0, 0)
    wait_until(lambda: gate.ended, "the handler has ended")


def test_a_server_that_is_away_when_the_worker_stops(
    engines: Engines, own_server: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate("function")
    engine = engines.opened(own_server.url, name=name, shards=1, timeout=0.5)
    engine.start()
    worker = engine.worker()
    worker.on("")(gate.handler)
    with caplog.at_level(logging.INFO, logger="shardq"), engines.working(worker) as stop:
        engine.push("x")
        wait_until(lambda: gate.begun, "it runs")
        own_server.kill()
        stop()
        gate.open()
    assert "1 settlement could not be sent; the tasks come back" in caplog.text
    assert "Traceback" not in caplog.text
