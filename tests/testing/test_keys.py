"""Tasks with a key under a clock that a test moves, and in assertions."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterator

import pytest

import shardq
from shardq import Delivery, Hold, Task
from shardq.testing import Clock, assert_pushed, assert_ready


@pytest.fixture
def clock(url: str) -> Iterator[Clock]:
    with Clock(url) as clock:
        yield clock


@pytest.fixture
def engine(clock: Clock) -> shardq.Engine:
    engine = clock.adopt(shardq.Engine(shards=4))
    engine.limit("webhook", per_key=1)
    return engine


@pytest.mark.parametrize("id", ["order-42", "webhook/ann/order-42"])
def test_a_keyed_task_is_found_by_either_id(clock: Clock, engine: shardq.Engine, id: str) -> None:
    engine.push("x", topic="webhook", key="ann", id="order-42", delay=60)
    assert assert_pushed(engine, id=id, delay=60).due == clock.now() + dt.timedelta(minutes=1)
    clock.advance(minutes=1)
    assert assert_ready(engine, id=id).payload == "x"


def test_a_task_that_waits_for_its_key_is_held(clock: Clock, engine: shardq.Engine) -> None:
    engine.push_many([Task(n, topic="webhook", key="ann", delay=n) for n in (1, 2)])
    clock.advance(seconds=5)
    assert [(task.state, task.payload) for task in shardq.testing.tasks(engine)] == [("ready", 1), ("held", 2)]
    assert assert_pushed(engine, payload=2).state == "held"
    with pytest.raises(AssertionError, match=r"there is no ready task"):
        assert_ready(engine, 2)
    shardq.testing.drain(engine)
    shardq.testing.assert_not_pushed(engine)


def test_keys_are_handled_in_order_at_their_instants(clock: Clock, engine: shardq.Engine) -> None:
    seen: list[tuple[dt.datetime, str | None, object, int]] = []
    worker = engine.worker()

    @worker.on("webhook")
    def send(delivery: Delivery) -> None:
        seen.append((clock.now(), delivery.key, delivery.payload, delivery.fence))
        if len(seen) == 2:
            raise Hold(60)

    clock.bind(worker, raising=True)
    began = clock.now()
    engine.push_many([Task(n, topic="webhook", key="ann", delay=n, id=str(n)) for n in (3, 1, 2)])
    clock.advance(minutes=5)
    held_s = 62
    assert [(int((at - began).total_seconds()), key, payload) for at, key, payload, _ in seen] == [
        (1, "ann", 1),
        (2, "ann", 2),
        (held_s, "ann", 2),
        (held_s, "ann", 3),
    ]
    fences = [fence for *_, fence in seen]
    assert all(before < after for before, after in itertools.pairwise(fences))


def test_a_topic_waits_for_a_task_without_a_key(clock: Clock, engine: shardq.Engine) -> None:
    seen: list[tuple[int, object]] = []
    worker = engine.worker()
    began = clock.now()

    @worker.on("mail")
    def send(delivery: Delivery) -> None:
        seen.append((int((clock.now() - began).total_seconds()), delivery.payload))
        if len(seen) == 1:
            raise Hold(dt.timedelta(minutes=5))

    clock.bind(worker, raising=True)
    engine.push_many([Task(n, topic="mail", delay=n) for n in (1, 2)])
    clock.advance(minutes=1)
    assert engine.topology.paused == {"mail"}
    clock.advance(hours=1)
    assert seen[0] == (1, 1)
    assert sorted(seen[1:]) == [(301, 1), (301, 2)]
