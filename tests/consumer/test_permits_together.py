"""A claim of several limited topics asks for the permits of all of them in one trip."""

from __future__ import annotations

from typing import Any

import pytest

from shardq import Engine
from shardq.core.consumer.rate_limiter import RateLimiter
from tests.support.states import make_ready


def test_permits_of_many_topics(running: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [f"mail-{n}" for n in range(10)]
    for topic in topics:
        running.limit(topic, concurrency=2)
        make_ready(running, 3, topic=topic)
    trips: list[list[Any]] = []
    granted = RateLimiter.granted

    def counted(self: RateLimiter, *args: Any) -> Any:
        trips.append([])
        steps, answer = granted(self, *args), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            trips[-1].append(step)
            answer = yield step

    monkeypatch.setattr(RateLimiter, "granted", counted)
    consumer = running.consumer(topics)
    consumer.claim(1)  # learns what is there
    deliveries = consumer.claim(100)
    assert len(deliveries) == 19
    assert max(len(steps) for steps in trips) == 1
    monkeypatch.undo()
    consumer.ack(deliveries)
