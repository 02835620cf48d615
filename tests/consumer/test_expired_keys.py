"""A backlog of a key that has expired does not hold the key up."""

from __future__ import annotations

import time

import pytest

from shardq import Engine, Task
from tests.support.waiting import wait_until


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_an_expired_backlog_of_a_key_is_dropped_many_at_a_time(engine: Engine) -> None:
    engine.limit("w", per_key=1)
    engine.hold("w", key="k", until=time.time() + 60)
    engine.push_many([Task(n, topic="w", key="k", expires=0.2) for n in range(5000)])
    alive = engine.push("alive", topic="w", key="k")
    time.sleep(0.25)
    engine.hold("w", key="k", until=None)
    engine.start()
    consumer, claims = engine.consumer("w"), 0
    deliveries = []

    def given() -> bool:
        nonlocal claims
        claims += 1
        deliveries.extend(consumer.claim(1, wait=1.0))
        return bool(deliveries)

    wait_until(given, "what has not expired is given out")
    assert [each.id for each in deliveries] == [alive]
    assert engine.stats().dead == 5000
    assert engine.stats().held == 0
    # one each would be 5,000 of them
    assert claims < 100
