"""Who acknowledges a task of a key finds the next one ready without a dispatcher, where nothing keeps the key back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from shardq import Consumer, Engine, Task
from shardq.core.calls import dispatch
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from tests.keys.account import TOPIC
from tests.support.states import ready_of
from tests.support.waiting import wait_until


class Keyed:
    """An engine of which no poller runs. ``look`` is what one would do, once."""

    def __init__(self, engine: Engine, driver: Driver) -> None:
        self.engine, self._driver = engine, driver
        self.consumer: Consumer = engine.consumer(TOPIC, lease=60)

    def look(self) -> int:
        topology = self.engine.topology
        moved = 0
        for shard in topology.span():
            keys = shard_keys(self.engine.name, shard, keyed=True)
            call = dispatch.dispatch(keys, topology.stamp, (TOPIC,), limit=1000, max_attempts=9)
            moved += self._driver.call(call).moved
        return moved

    def step(self) -> list[Any]:
        """Claims what is ready, and acknowledges it."""
        deliveries = self.consumer.claim(100)
        self.consumer.ack(deliveries)
        return [each.payload for each in deliveries]


@pytest.fixture
def keyed(engine: Engine, driver: Driver) -> Keyed:
    engine.push_many([Task(n, topic=TOPIC, key="k") for n in range(4)])
    return Keyed(engine, driver)


def test_a_key_goes_on_without_a_dispatcher(keyed: Keyed) -> None:
    assert keyed.look() == 1
    assert [keyed.step() for _ in range(5)] == [[0], [1], [2], [3], []]


def test_many_keys_do(engine: Engine, driver: Driver) -> None:
    engine.push_many([Task(n, topic=TOPIC, key=f"k{n}") for _ in range(3) for n in range(50)])
    keyed = Keyed(engine, driver)
    assert keyed.look() == 50
    assert [sorted(keyed.step()) for _ in range(4)] == [list(range(50))] * 3 + [[]]


Change = Callable[[Engine], object]

CHANGES: dict[str, Change] = {
    "a hold": lambda engine: engine.hold(TOPIC, key="k", until=time.time() + 60),
    "a wider window": lambda engine: engine.limit(TOPIC, per_key=2),
    "a rate": lambda engine: engine.limit(TOPIC, per_key=1, per_key_rate=0.01),
    "a pause": lambda engine: engine.pause(TOPIC),
    "a route": lambda engine: engine.forward(TOPIC, to="elsewhere"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_keeps_it_from_giving_keeps_it_from_this(keyed: Keyed, change: str) -> None:
    """Also where the consumer does not know of it yet."""
    keyed.look()
    (delivery,) = keyed.consumer.claim(1)
    CHANGES[change](keyed.engine)
    keyed.consumer.ack(delivery)
    assert ready_of(keyed.engine, TOPIC) == 0


@pytest.mark.parametrize("change", ["a pause", "a rate", "a route", "a wider window"])
def test_also_where_another_process_has_said_so(keyed: Keyed, url: str, name: str, change: str) -> None:
    keyed.look()
    (delivery,) = keyed.consumer.claim(1)
    with Engine(url, name=name) as other:
        CHANGES[change](other)
    keyed.consumer.ack(delivery)
    assert ready_of(keyed.engine, TOPIC) == 0


def test_what_has_expired_is_given_to_nobody(engine: Engine, driver: Driver) -> None:
    engine.push("first", topic=TOPIC, key="k")
    engine.push("worth nothing", topic=TOPIC, key="k", expires=0.2)
    engine.push("third", topic=TOPIC, key="k")
    keyed = Keyed(engine, driver)
    keyed.look()
    (first,) = keyed.consumer.claim(1)
    time.sleep(0.3)
    keyed.consumer.ack(first)
    assert keyed.step() == [], "it is dropped"
    assert keyed.look() == 1
    assert keyed.step() == ["third"]


def test_what_failed_comes_before_the_next(keyed: Keyed) -> None:
    keyed.look()
    (delivery,) = keyed.consumer.claim(1)
    keyed.consumer.retry(delivery, delay=0)
    wait_until(lambda: keyed.look() == 1, "it is due, in the next millisecond perhaps")
    assert [keyed.step() for _ in range(4)] == [[0], [1], [2], [3]]
