"""A new limit holds at once, whatever was denied under the old one: for consumers, workers and forwarded topics."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardq import Consumer, Delivery, Engine, Task
from shardq.core.layout.keys import control_keys
from shardq.core.layout.slots import slot_of
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.states import claim, make_ready, ready_of
from tests.support.waiting import wait_until

HOURLY = 1 / 3600
"""A rate under which the second task comes in an hour."""

COUNT = 6

SOON_S = 10.0
"""Far below that hour, and below the wait of the claims here."""

Change = Callable[[Engine], None]

CHANGES: dict[str, tuple[Change, Change]] = {
    "a higher rate": (
        lambda engine: engine.limit("mail", rate=HOURLY),
        lambda engine: engine.limit("mail", rate=1000),
    ),
    "no rate": (lambda engine: engine.limit("mail", rate=HOURLY), lambda engine: engine.limit("mail", None)),
    "a concurrency for a rate": (
        lambda engine: engine.limit("mail", rate=HOURLY),
        lambda engine: engine.limit("mail", concurrency=COUNT),
    ),
    "a higher concurrency": (
        lambda engine: engine.limit("mail", concurrency=1),
        lambda engine: engine.limit("mail", concurrency=COUNT),
    ),
    "no concurrency": (lambda engine: engine.limit("mail", concurrency=1), lambda engine: engine.limit("mail", None)),
}


def claimed(consumer: Consumer, count: int) -> list[Delivery]:
    """So many deliveries, of claims that wait."""
    deliveries: list[Delivery] = []
    end = time.monotonic() + SOON_S
    while len(deliveries) < count and time.monotonic() < end:
        deliveries += consumer.claim(count - len(deliveries), wait=2 * SOON_S)
    return deliveries


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES)
def test_a_consumer_that_waits_goes_by_a_new_limit(running: Engine, other: Engine, old: Change, new: Change) -> None:
    old(other)
    make_ready(running, COUNT)
    consumer = running.consumer("mail")
    claim(consumer, 1)
    assert consumer.claim(1) == [], "it has learnt that there is no more"
    with ThreadPoolExecutor(1) as threads:
        began = time.monotonic()
        rest = threads.submit(claimed, consumer, COUNT - 1)
        new(other)
        assert len(rest.result()) == COUNT - 1
        assert time.monotonic() - began < SOON_S


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES)
def test_a_consumer_that_does_not_wait_goes_by_a_new_limit(
    running: Engine, other: Engine, old: Change, new: Change
) -> None:
    old(other)
    make_ready(running, COUNT)
    consumer = running.consumer("mail")
    claim(consumer, 1)
    assert consumer.claim(1) == []
    new(other)
    deliveries: list[Delivery] = []

    def all_claimed() -> bool:
        deliveries.extend(consumer.claim(COUNT))
        return len(deliveries) == COUNT - 1

    wait_until(all_claimed, "all others are given out", timeout=SOON_S)


@pytest.mark.parametrize(("old", "new"), CHANGES.values(), ids=CHANGES)
def test_a_worker_goes_by_a_new_limit(
    engines: Engines, running: Engine, other: Engine, old: Change, new: Change
) -> None:
    old(other)
    begun: list[object] = []
    ended: list[object] = []
    worker = running.worker(concurrency=COUNT)

    @worker.on("mail")
    def handle(delivery: Delivery) -> None:
        begun.append(delivery.payload)
        wait_until(lambda: len(begun) == COUNT, "all have begun", timeout=2 * SOON_S)
        ended.append(delivery.payload)

    with engines.working(worker):
        running.push_many([Task(n, topic="mail") for n in range(COUNT)])
        wait_until(lambda: len(begun) == 1, "the first is handled")
        wait_until(lambda: ready_of(running, "mail") == COUNT - 1, "the others are ready")
        new(other)
        wait_until(lambda: len(ended) == COUNT, "all are handled", timeout=SOON_S)


def test_a_forwarded_topic_goes_by_a_new_rate(running: Engine, other: Engine, servers: Servers, name: str) -> None:
    key, control = f"mine:{name}", control_keys(name)
    other.limit("mail", rate=HOURLY)
    make_ready(running, 1)
    consumer = running.consumer("mail")
    consumer.ack(claim(consumer, 1))
    # whoever asks for permits removes it
    servers.ask(control.slot, "ZADD", control.permits("mail"), 1, "lapsed")
    running.forward("mail", to=key)
    running.push_many([Task(n, topic="mail") for n in range(COUNT)])
    wait_until(lambda: not servers.ask(control.slot, "EXISTS", control.permits("mail")), "it was asked for a permit")
    assert servers.ask(slot_of(key), "LLEN", key) == 0
    other.limit("mail", rate=1000)
    wait_until(lambda: servers.ask(slot_of(key), "LLEN", key) == COUNT, "all have arrived", timeout=SOON_S)


def test_a_lower_rate_holds_at_once(running: Engine, other: Engine) -> None:
    running.limit("mail", rate=1000)
    make_ready(running, COUNT)
    consumer = running.consumer("mail")
    claim(consumer, 2)
    other.limit("mail", rate=HOURLY)
    # what the old rate had saved up is worth one task of the new one
    wait_until(lambda: running.topology.limits["mail"].rate == HOURLY or consumer.claim(1), "the limit is known")
    assert len(consumer.claim(COUNT, wait=0.5)) + len(consumer.claim(COUNT, wait=0.5)) <= 1


def test_a_lower_concurrency_holds_at_once(running: Engine, other: Engine) -> None:
    running.limit("mail", concurrency=4)
    make_ready(running, COUNT)
    consumer = running.consumer("mail")
    held = claim(consumer, 4)
    other.limit("mail", concurrency=2)
    consumer.ack(held[:2])
    assert consumer.claim(COUNT, wait=0.5) == [], "two run"
    consumer.ack(held[2:])
    assert len(claim(consumer, 2)) == 2
