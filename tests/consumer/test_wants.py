"""A claim of so many of each of some topics, as that of routes is: of no topic more, and nothing of others."""

from __future__ import annotations

from collections import Counter

import pytest

from shardq import Engine, Task
from shardq.core.consumer.claim_planner import ReadyCounts
from shardq.core.consumer.claim_state import ClaimNotes, Claims
from shardq.core.consumer.claiming import claim, give_back_leases
from shardq.core.consumer.settling import back_unbegun
from shardq.core.operation import run
from shardq.engine.access import EngineAccess
from tests.support.waiting import wait_until

EACH = 50


@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_of_each_topic_no_more_than_is_wanted(running: Engine) -> None:
    running.push_many([Task(n, topic=topic) for topic in ("a", "b", "c", "paused") for n in range(EACH)])
    running.pause("paused")
    running.limit("c", concurrency=2)
    internals = EngineAccess(running)
    claims = Claims(internals.cache, [], name="me", lease_ms=15_000, ready_counts=ReadyCounts())
    driver = internals.open_driver()

    def claimed(**wants: int) -> Counter[str]:
        wait_until(lambda: running.stats().ready == 4 * EACH, "all are ready")
        steps = claim(claims, ClaimNotes(), sum(wants.values()), claims.cache.topology.span(), wants=wants)
        deliveries = run(driver, steps, 10)
        run(driver, give_back_leases(claims, back_unbegun(deliveries)), 10)
        return Counter(delivery.topic for delivery in deliveries)

    for _ in range(3):
        assert claimed(a=10, b=7) == {"a": 10, "b": 7}
        assert claimed(b=1000, paused=5) == {"b": EACH}
        assert claimed(paused=5) == {}
    assert claimed(a=3, c=5) == {"a": 3, "c": 2}
