"""Deliveries of tasks with a key: its name, and the fence of their lease."""

from __future__ import annotations

import itertools

import pytest

from shardq import Consumer, Engine, Task
from tests.support.states import claim


def fences(consumer: Consumer, count: int, *, at_once: int = 1) -> list[int]:
    """The fences of so many leases, each acked at once."""
    found: list[int] = []
    while len(found) < count:
        deliveries = consumer.claim(at_once, wait=5)
        found += [each.fence for each in deliveries]
        consumer.ack(deliveries)
    return found


def test_a_delivery_tells_its_key(running: Engine) -> None:
    running.limit("webhook", per_key=1)
    running.push_many([Task(1, topic="webhook", key="customer-7", id="a"), Task(2, topic="webhook", id="b")])
    running.push(3, key="customer-7", id="c")
    keys = {each.payload: each.key for each in claim(running.consumer(["webhook", ""]), 3)}
    assert keys == {1: "customer-7", 2: None, 3: "customer-7"}


@pytest.mark.parametrize("per_key", [1, 20])
def test_the_fence_grows_with_each_lease_of_a_key(running: Engine, per_key: int) -> None:
    """Also of leases within one millisecond."""
    running.limit("webhook", per_key=per_key)
    running.push_many([Task(n, topic="webhook", key="customer-7") for n in range(400)])
    found = fences(running.consumer("webhook"), 400, at_once=per_key)
    if per_key > 1:  # one claim gives them shard by shard, in the order of their list
        assert len(set(found)) == 400
    assert all(before < after for before, after in itertools.pairwise(found))


def test_the_next_holder_of_a_task_has_a_higher_fence(running: Engine) -> None:
    running.limit("webhook", per_key=1)
    running.push("x", topic="webhook", key="customer-7")
    (before,) = claim(running.consumer("webhook", lease=0.05), 1)
    (after,) = claim(running.consumer("webhook"), 1)
    assert (before.id, before.key) == (after.id, after.key)
    assert before.fence < after.fence


def test_an_engine_without_keys_has_no_fences(running: Engine) -> None:
    running.push("x")
    (delivery,) = claim(running.consumer(), 1)
    assert (delivery.key, delivery.fence) == (None, 0)
