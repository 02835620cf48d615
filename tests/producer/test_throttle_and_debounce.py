"""throttle=: of the pushes of one id at most one in so many seconds is taken, whatever becomes of its task. And the
pattern that is its counterpart, debounce: pushes that replace each other until none has come for a while.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from shardq import Consumer, Engine, Task
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until
from tests.support.workers import Worker


def test_what_the_receipt_tells(running: Engine, consumer: Consumer) -> None:
    first = running.push("first", id="news", throttle=FAR_S)
    assert (first.outcome, first.state) == ("pushed", None)
    [delivery] = claim(consumer, 1)
    running_one = running.push("second", id="news", throttle=FAR_S)
    assert (running_one.outcome, running_one.state) == ("kept", "leased")
    consumer.ack(delivery)
    done = running.push("third", id="news", throttle=FAR_S)
    assert (done.outcome, done.state) == ("seen", None)
    assert running.get("news") is None
    assert running.push("first", id="other", throttle=FAR_S).outcome == "pushed"


def test_while_the_first_is_pending_for_longer_than_the_throttle(engine: Engine) -> None:
    engine.push("first", id="news", throttle=0.001, delay=FAR_S)
    for receipt in engine.push_many([Task(n, id="news", throttle=0.001, delay=FAR_S) for n in range(20)]):
        assert (receipt.outcome, receipt.state) == ("kept", "scheduled")
    task = engine.get("news")
    assert task is not None
    assert task.payload == "first"


def test_after_the_first_is_cancelled(engine: Engine) -> None:
    engine.push("first", id="news", throttle=FAR_S, delay=FAR_S)
    assert engine.cancel("news")
    assert engine.push("second", id="news", throttle=FAR_S).outcome == "seen"
    assert engine.get("news") is None


def test_it_ends(engine: Engine) -> None:
    engine.push("first", id="news", throttle=0.2, delay=FAR_S)
    assert engine.cancel("news")

    def taken() -> bool:
        return engine.push("second", id="news", throttle=FAR_S, delay=FAR_S).outcome == "pushed"

    wait_until(taken, "the throttle is over")


@pytest.mark.slow
def test_a_hundred_pushes_of_one_id_are_handled_once_with_the_last_payload(
    running: Engine, consumer: Consumer, url: str, name: str
) -> None:
    """Of four processes at once, while a dispatcher runs; then the last push, whose delay is short."""
    with ExitStack() as stack:
        producers = [
            stack.enter_context(Worker("tests.support.debouncing", url, name, "page-7", 25, FAR_S)) for _ in range(4)
        ]
        assert [producer.said() for producer in producers] == ["pushed"] * 4
    assert running.stats().scheduled == 1
    last = running.push("last", id="page-7", delay=0.1, on_conflict="replace")
    assert last.outcome == "replaced"
    [delivery] = claim(consumer, 1)
    assert (delivery.payload, delivery.attempt) == ("last", 1)
    consumer.ack(delivery)
    stats = running.stats()
    assert (stats.scheduled, stats.ready, stats.leased, stats.dead) == (0, 0, 0, 0)


def test_a_push_while_the_task_runs_is_handled_too(running: Engine, consumer: Consumer) -> None:
    """What comes while a handler works on the last state is not lost: it is handled after its own delay."""
    running.push("first", id="page-7", delay=0.01, on_conflict="replace")
    [first] = claim(consumer, 1)
    assert running.push("second", id="page-7", delay=0.01, on_conflict="replace").outcome == "replaced"
    [second] = claim(consumer, 1)
    assert (first.payload, second.payload) == ("first", "second")
    consumer.ack(second)
