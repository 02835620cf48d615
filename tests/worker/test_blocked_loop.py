"""While the event loop is blocked, other workers get the tasks that need it, and functions go on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shardq import Delivery, Engine, Task
from tests.support.engines import Engines
from tests.support.states import claim, counted, state_of
from tests.support.waiting import wait_until
from tests.worker.flavours import BLOCKED_S

pytestmark = pytest.mark.parametrize("url", ["single"], indirect=True)


class Blocking:
    """A coroutine function that waits as functions do, for payloads that say so."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.over = threading.Event()

    async def handler(self, delivery: Delivery) -> None:
        self.begun.append(delivery.payload)
        if delivery.payload == "block":
            self.over.wait(BLOCKED_S)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    made = Blocking()
    yield made
    made.over.set()


@pytest.fixture
def outside(running: Engine, url: str) -> Iterator[Engine]:
    """Another engine, that does not need the loop."""
    with Engine(url, name=running.name) as engine:
        engine.start()
        yield engine


@pytest.mark.slow
def test_what_it_can_not_begin_is_given_back_and_functions_go_on(
    engines: Engines, running: Engine, outside: Engine, blocking: Blocking, caplog: pytest.LogCaptureFixture
) -> None:
    handled: list[Any] = []
    worker = running.worker(concurrency=4)
    worker.on("loop")(blocking.handler)
    worker.on("threads")(lambda delivery: handled.append(delivery.payload))
    with caplog.at_level(logging.INFO, logger="shardq"), engines.working(worker):
        try:
            outside.push("block", topic="loop")
            wait_until(lambda: blocking.begun, "it runs")
            outside.push_many([Task(n, topic="loop") for n in range(3)])
            wait_until(lambda: worker.problems, "it knows")
            assert not worker.healthy
            other = outside.consumer("loop")
            deliveries = claim(other, 3)
            other.ack(deliveries)
            assert {(each.attempt, each.failures, each.lapses) for each in deliveries} == {(1, 0, 0)}
            rest = outside.push_many([Task(n, topic="loop") for n in range(3, 8)])
            wait_until(lambda: {state_of(outside, id) for id in rest} == {"ready"}, "they are nobody's")
            for n in range(10):
                outside.push(n, topic="threads")
                wait_until(lambda: n in handled, "functions go on")  # noqa: B023  called at once
                wait_until(lambda: counted(outside).leased == 1, "the one that runs is all it has")
            assert {state_of(outside, id) for id in rest} == {"ready"}
            assert blocking.begun == ["block"]
            (problem,) = worker.problems
            assert "its event loop has not answered for" in problem
            assert "test_blocked_loop.Blocking.handler" in problem
        finally:
            blocking.over.set()
        wait_until(lambda: {state_of(outside, id) for id in rest} == {"gone"}, "it goes on by itself")
        wait_until(lambda: worker.healthy, "all is well again")
    assert sorted(blocking.begun[1:]) == [3, 4, 5, 6, 7]
    said = [record.getMessage() for record in caplog.records if "event loop" in record.getMessage()]
    assert len(said) == 2
    assert "the event loop does not answer, it is in handler tests.worker.test_blocked_loop.Blocking." in said[0]
    assert said[1] == "the event loop answers again"


@pytest.mark.slow
def test_one_that_has_timed_out_blocks_it_all_the_same(
    engines: Engines, running: Engine, outside: Engine, blocking: Blocking
) -> None:
    """Its task is settled, so nothing of it is held, and its cancellation does not reach it."""
    handled: list[Any] = []
    worker = running.worker(concurrency=1, max_attempts=1)
    worker.on("loop", timeout=0.2)(blocking.handler)
    worker.on("later")(blocking.handler)
    worker.on("threads")(lambda delivery: handled.append(delivery.payload))
    with engines.working(worker):
        try:
            first = outside.push("block", topic="loop")
            wait_until(lambda: state_of(outside, first) == "dead", "it has timed out")
            second = outside.push("next", topic="later")
            wait_until(lambda: worker.problems, "the next can't be begun")
            wait_until(lambda: state_of(outside, second) == "ready", "it is given back")
            for n in range(5):
                outside.push(n, topic="threads")
                wait_until(lambda: n in handled, "functions have the only place")  # noqa: B023  called at once
            assert state_of(outside, second) == "ready"
        finally:
            blocking.over.set()
        wait_until(lambda: state_of(outside, second) == "gone", "it goes on by itself")
        wait_until(lambda: worker.healthy, "all is well again")
        assert worker.strays == {}


def test_functions_alone_need_no_loop(engines: Engines, running: Engine, outside: Engine, blocking: Blocking) -> None:
    """That of an asyncio program may be busy with something else: no concern of a worker without coroutines."""
    gate, begun = threading.Event(), list[Any]()

    def wait(delivery: Delivery) -> None:
        begun.append(delivery.payload)
        if delivery.payload == "gate":
            gate.wait(BLOCKED_S)

    worker = running.worker(concurrency=2)
    worker.on("")(wait)
    with engines.working(worker):
        try:
            held = outside.push("gate")
            wait_until(lambda: begun, "it runs")
            if engines._loop is not None:
                engines._loop.call(lambda: blocking.over.wait(BLOCKED_S))
            ids = [outside.push(n) for n in range(100)]
            wait_until(lambda: {state_of(outside, id) for id in ids} == {"gone"}, "they are handled")
            assert worker.healthy
            gate.set()
            wait_until(lambda: state_of(outside, held) == "gone", "and so is the first")
        finally:
            gate.set()
            blocking.over.set()
