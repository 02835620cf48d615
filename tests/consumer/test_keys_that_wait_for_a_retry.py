"""A key whose task has failed waits for its retry, and no longer than that task is there to be retried."""

from __future__ import annotations

import pytest

import shardq


@pytest.fixture
def consumer(engine: shardq.Engine) -> shardq.Consumer:
    engine.start()
    return engine.consumer("account")


def fails(engine: shardq.Engine, consumer: shardq.Consumer, *, delay: float) -> str:
    """Of two tasks of a key the first one has failed. Returns its id."""
    ids = [engine.push(text, topic="account", key="ann") for text in ("first", "second")]
    [delivery] = consumer.claim(2, wait=5)
    assert delivery.id == ids[0]
    consumer.retry(delivery, delay=delay)
    return ids[0]


def test_a_rate_does_not_cut_a_backoff_short(engine: shardq.Engine, consumer: shardq.Consumer) -> None:
    engine.limit("account", per_key=1, per_key_rate=10)
    first = fails(engine, consumer, delay=1.5)
    assert consumer.claim(2, wait=1) == []
    assert [each.id for each in consumer.claim(2, wait=5)] == [first]


def test_a_key_goes_on_when_its_failed_task_is_cancelled(engine: shardq.Engine, consumer: shardq.Consumer) -> None:
    first = fails(engine, consumer, delay=3600)
    assert engine.cancel(first)
    assert [each.payload for each in consumer.claim(2, wait=5)] == ["second"]


def test_a_key_goes_on_when_its_failed_task_is_cancelled_by_its_tag(
    engine: shardq.Engine, consumer: shardq.Consumer
) -> None:
    engine.push("first", topic="account", key="ann", tags=["bad"])
    engine.push("second", topic="account", key="ann")
    [delivery] = consumer.claim(2, wait=5)
    consumer.retry(delivery, delay=3600)
    assert engine.cancel_all(tag="bad").done == 1
    assert [each.payload for each in consumer.claim(2, wait=5)] == ["second"]


def test_a_failed_task_that_is_rescheduled_comes_then(engine: shardq.Engine, consumer: shardq.Consumer) -> None:
    first = fails(engine, consumer, delay=3600)
    assert engine.reschedule(first, delay=0)
    given = []
    for _ in range(2):
        given += consumer.claim(2, wait=5)
        consumer.ack(given[-1:])
    assert [each.payload for each in given] == ["second", "first"]


def test_a_key_goes_on_once_failures_are_to_be_skipped(engine: shardq.Engine, consumer: shardq.Consumer) -> None:
    first = fails(engine, consumer, delay=1)
    engine.limit("account", per_key=1, on_failure="skip")
    given = []
    for _ in range(2):
        given += consumer.claim(2, wait=5)
        consumer.ack(given[-1:])
    assert [each.payload for each in given] == ["second", "first"]
    assert given[1].id == first
