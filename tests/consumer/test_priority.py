"""Consumers get topics in strict order, or by weight, over all shards."""

from __future__ import annotations

from collections import Counter

import pytest

from shardq import Engine, Task
from shardq.core.model.checks import Topics
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.states import counted, ready_of
from tests.support.waiting import wait_until

SHARDS = 16


@pytest.fixture
def engine(engines: Engines, url: str, name: str) -> Engine:
    return engines.opened(url, name=name, shards=SHARDS)


def ready(engine: Engine, topic: str, count: int) -> None:
    engine.push_many([Task(None, topic=topic) for _ in range(count)])
    wait_until(lambda: ready_of(engine, topic) == count, f"{count} tasks of {topic} are ready")


@pytest.mark.parametrize("max", [1, 10, 64])
def test_high_before_any_further_low(running: Engine, max: int) -> None:
    ready(running, "low", 10_000)
    consumer = running.consumer(["high", "low"])
    for _ in range(5):
        assert {d.topic for d in consumer.claim(max)} == {"low"}
    ready(running, "high", 100)
    consumer.claim(max)  # the trip that brings the hints
    left = counted(running).topics["high"].ready
    topics = [topic for _ in range(100 // max + 3) for topic in sorted(d.topic for d in consumer.claim(max))]
    assert topics[:left] == ["high"] * left
    assert set(topics[left:]) == {"low"}


def test_weights(running: Engine) -> None:
    weights = {"high": 5, "low": 1}
    ready(running, "high", 9_000)
    ready(running, "low", 5_000)
    consumer = running.consumer(weights)
    given: Counter[str] = Counter()
    while given.total() < 10_000:
        deliveries = consumer.claim(50)
        assert len(deliveries) <= 50
        given.update(d.topic for d in deliveries)
        if given.total() >= 1000:
            for topic, weight in weights.items():
                assert given[topic] == pytest.approx(given.total() * weight / 6, rel=0.1)


@pytest.mark.parametrize(
    ("topics", "text"),
    [
        ({"a": 0}, "the weight 0 of 'a' is not possible; give an int from 1 to 1000"),
        ({"a": 1001}, "the weight 1001 of 'a' is not possible"),
        ({"a": 1.5}, "the weight 1.5 of 'a' is not possible"),
        (["a", "b", "a"], "name one twice"),
        ([], "topics= names none"),
        ({"a", "b"}, "give a name, .name, …. in their order of priority, or {name: weight, …}"),
    ],
)
def test_impossible_topics(engine: Engine, topics: Topics, text: str) -> None:
    for take in (engine.consumer, engine.worker):
        with pytest.raises(InvalidOption, match=text):
            take(topics)
