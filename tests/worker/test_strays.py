"""A handler that runs on after its task was ended (a stray) gives its place to another; strays are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from shardq import Delivery, Engine, Task
from shardq.delivery.strays import MOST
from tests.support.engines import Engines
from tests.support.states import counted, state_of
from tests.support.waiting import wait_until
from tests.worker.flavours import BLOCKED_S, Flavour, handler

SINGLE = pytest.mark.parametrize("url", ["single"], indirect=True)

TIMEOUT_S = 0.2


class Stubborn:
    """A handler that goes on until it is let go, whatever it is told, for payloads that say so."""

    def __init__(self, flavour: Flavour) -> None:
        self.begun: list[Any] = []
        self.deliveries: list[Delivery] = []
        self.ended: list[Any] = []
        self._over = threading.Event()
        self.handler = self._block if flavour == "function" else self._swallow

    def let_go(self) -> None:
        self._over.set()

    def _block(self, delivery: Delivery) -> None:
        self.begun.append(delivery.payload)
        self.deliveries.append(delivery)
        if delivery.payload == "stubborn":
            self._over.wait(BLOCKED_S)
        self.ended.append(delivery.payload)

    async def _swallow(self, delivery: Delivery) -> None:
        self.begun.append(delivery.payload)
        self.deliveries.append(delivery)
        while delivery.payload == "stubborn" and not self._over.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)
        self.ended.append(delivery.payload)


@pytest.fixture
def stubborn(flavour: Flavour) -> Iterator[Stubborn]:
    made = Stubborn(flavour)
    yield made
    made.let_go()


@pytest.mark.slow
@SINGLE
def test_its_place_is_free_again(
    engines: Engines, running: Engine, stubborn: Stubborn, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """With one place only, it is taken for good by whoever does not end."""
    handled: list[int] = []
    worker = running.worker(concurrency=1, max_attempts=1)
    worker.on("stubborn", timeout=TIMEOUT_S)(stubborn.handler)
    worker.on("")(handler(flavour, lambda delivery: handled.append(delivery.payload)))
    with caplog.at_level(logging.INFO, logger="shardq"), engines.working(worker):
        for n in range(3):
            id = running.push("stubborn", topic="stubborn")
            wait_until(lambda: state_of(running, id) == "dead", "it has timed out")  # noqa: B023  called at once
            ids = running.push_many([Task(n) for _ in range(10)])
            wait_until(lambda: {state_of(running, id) for id in ids} == {"gone"}, "all others are handled")  # noqa: B023
        wait_until(lambda: sum(worker.strays.values()) == 3, "they are counted")
        assert worker.healthy
        assert worker.problems == ()
        stubborn.let_go()
        wait_until(lambda: not worker.strays, "they have ended")
    assert sorted(handled) == [0] * 10 + [1] * 10 + [2] * 10
    assert len(stubborn.begun) == 3
    said = [record.getMessage() for record in caplog.records if "runs on" in record.getMessage()]
    assert len(said) == 1
    assert "test_strays.Stubborn." in said[0]


@SINGLE
def test_it_is_known_by_its_name(engines: Engines, running: Engine, stubborn: Stubborn) -> None:
    worker = running.worker(concurrency=1, max_attempts=1)
    worker.on("", timeout=TIMEOUT_S)(stubborn.handler)
    assert worker.strays == {}
    with engines.working(worker):
        running.push("stubborn")
        (name,) = wait_until(lambda: worker.strays, "it is counted")
        stubborn.let_go()
    assert name == f"tests.worker.test_strays.Stubborn.{stubborn.handler.__name__}"
    assert worker.strays == {}


@pytest.mark.slow
@SINGLE
def test_there_is_an_end_to_them(
    engines: Engines, running: Engine, stubborn: Stubborn, flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    """A handler that never ends would take threads and memory without limit: its topic is let be, the others go on."""
    handled: list[Any] = []
    worker = running.worker(concurrency=4, max_attempts=1)
    worker.on("", timeout=TIMEOUT_S)(stubborn.handler)
    worker.on("other")(handler(flavour, lambda delivery: handled.append(delivery.payload)))
    with engines.working(worker):
        running.push_many([Task("stubborn") for _ in range(MOST * 4)])
        wait_until(lambda: worker.problems, "it says that it claims no more of them")
        # a claim that was under way may have brought more of them, beside this one
        running.push("after it", topic="other")
        wait_until(lambda: "after it" in handled, "a claim has come back since")
        wait_until(lambda: counted(running).leased == 0, "nothing is held")
        # none is claimed while others are
        before = len(stubborn.begun)
        assert MOST <= before <= MOST * 2
        for n in range(20):
            running.push(n, topic="other")
            wait_until(lambda: n in handled, "another topic goes on")  # noqa: B023  called at once
        assert len(stubborn.begun) == before
        assert not worker.healthy
        wait_until(lambda: sum(worker.strays.values()) == before, "every one of them is counted")
        (problem,) = worker.problems
        assert "topic (default) is not claimed" in problem
        assert "test_strays.Stubborn." in problem
        assert any(problem in each for each in running.health().reasons)
        stats = counted(running)
        assert stats.ready + stats.scheduled == MOST * 4 - before
        stubborn.let_go()
        wait_until(lambda: len(stubborn.ended) == MOST * 4, "they end, and the rest is handled")
        wait_until(lambda: worker.healthy, "all is well again")
    assert caplog.text.count("is claimed no more") == 1


@SINGLE
def test_a_lost_lease_leaves_the_place_to_others(engines: Engines, running: Engine, stubborn: Stubborn) -> None:
    """Another consumer settled its task meanwhile: the handler is as one that has timed out. A server that stands still
    for longer than the lease is no such case: the extension that waits in its socket may come before it reaps."""
    worker = running.worker(concurrency=1, lease=2.0, max_attempts=1)
    worker.on("")(stubborn.handler)
    with engines.working(worker):
        running.push("stubborn")
        (delivery,) = wait_until(lambda: stubborn.deliveries, "it runs")
        running.consumer().ack(delivery)
        wait_until(lambda: sum(worker.strays.values()) == 1, "it knows, and goes on")
        ids = running.push_many([Task(n) for n in range(5)])
        wait_until(lambda: {state_of(running, id) for id in ids} == {"gone"}, "others are handled")
        stubborn.let_go()
        wait_until(lambda: not worker.strays, "it has ended")
    assert stubborn.begun[0] == "stubborn"
    assert sorted(stubborn.begun[1:]) == [*range(5)]
