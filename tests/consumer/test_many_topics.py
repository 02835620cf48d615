"""Consumers of thousands of topics, most of which have nothing: each customer has one."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.core.calls import consume
from shardq.core.consumer.claiming import MOST_TOPICS
from tests.support.waiting import wait_until

TOPICS = [f"customer-{number}" for number in range(1000)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of topics of each request of a claim."""
    asked, made = list[int](), consume.claim

    def claim(keys: Any, epoch: Any, shares: Mapping[str, int], **options: Any) -> Any:
        asked.append(len(shares))
        return made(keys, epoch, shares, **options)

    monkeypatch.setattr(consume, "claim", claim)
    return asked


def test_all_tasks_are_found_by_claims_that_do_not_wait(running: Engine, asked: list[int]) -> None:
    ids = {*running.push_many([Task(n, topic=TOPICS[n * 3]) for n in range(300)])}
    wait_until(lambda: running.stats().ready == len(ids), "all are ready")
    consumer = running.consumer(TOPICS, lease=60)
    met: list[str] = []
    while deliveries := consumer.claim(50):
        met += [delivery.id for delivery in deliveries]
    assert (len(met), {*met}) == (len(ids), ids)
    assert max(asked) <= 2 * MOST_TOPICS


def test_the_first_topic_comes_first_of_those_that_are_known(running: Engine) -> None:
    running.push_many([Task(n, topic=TOPICS[n]) for n in range(0, 1000, 10)])
    wait_until(lambda: running.stats().ready == 100, "all are ready")
    consumer = running.consumer(TOPICS, lease=60)
    given = [TOPICS.index(delivery.topic) for delivery in consumer.claim(1000)]
    assert given == sorted(given)


def test_one_that_waits_is_woken_for_any_topic(running: Engine, asked: list[int]) -> None:
    consumer, met = running.consumer(TOPICS, lease=60), list[int]()

    def work() -> None:
        while len(met) < 40:
            for delivery in consumer.claim(10, wait=20):
                met.append(delivery.payload)
                consumer.ack(delivery)

    thread = threading.Thread(target=work)
    thread.start()
    # registered for all: nothing is asked any more
    wait_until(lambda: sum(asked) >= len(TOPICS), "the consumer asks for all")
    for number in range(40):
        running.push(number, topic=TOPICS[(number * 373) % 1000])
        wait_until(lambda: len(met) > number, f"task {number} is picked up")  # noqa: B023
    thread.join()
    assert met == [*range(40)]
    assert max(asked) <= 2 * MOST_TOPICS


def test_one_that_has_only_paused_topics_claims_again_when_they_are_resumed(running: Engine) -> None:
    many = TOPICS[: MOST_TOPICS + 1]
    for topic in many:
        running.pause(topic)
    running.push("later", topic=many[-1])
    consumer = running.consumer(many, lease=60)
    assert consumer.claim(1, wait=0.2) == []
    running.resume(many[-1])
    assert [delivery.payload for delivery in consumer.claim(1, wait=20)] == ["later"]
