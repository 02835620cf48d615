"""A task that is not claimed before it expires is buried, not run late."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from shardq import Consumer, Delivery, Engine, Task
from shardq.core.model import checks
from shardq.core.model.checks import expiry_spec
from shardq.errors import InvalidDelay, InvalidOption, NaiveDatetime
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, counted, put, state_of
from tests.support.waiting import wait_until

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)
LATER_MS = int(LATER.timestamp() * 1000)


@pytest.mark.parametrize(
    ("expires", "due", "spec"),
    [
        (None, 0, None),
        (5, 0, -5000),
        (0.0001, 0, -1),
        (dt.timedelta(minutes=1), -59_999, -60_000),
        (LATER, 0, LATER_MS),
        (LATER, LATER_MS - 1, LATER_MS),
        (LATER.timestamp(), -5000, LATER_MS),
        (1e9, 10**12 - 1, 10**12),
        # counted from different moments: compared by this machine's clock
        (5, 10**12, -5000),
        (LATER, -FAR_S * 1000, LATER_MS),
    ],
)
def test_an_expiry(expires: Any, due: int, spec: int | None) -> None:
    assert expiry_spec(expires, due) == spec


@pytest.mark.parametrize(
    ("expires", "due"),
    [(5, -5000), (5, -6000), (LATER, LATER_MS), (LATER, LATER_MS + 1), (LATER.timestamp(), LATER_MS)],
)
def test_an_expiry_before_the_due_time(expires: Any, due: int) -> None:
    with pytest.raises(InvalidOption, match="is not after the task's due time; it would never be handled"):
        expiry_spec(expires, due)


@pytest.mark.parametrize("expires", [1e9, dt.datetime(1970, 1, 1, 0, 1, tzinfo=dt.UTC)], ids=["2001", "1970"])
@pytest.mark.parametrize("options", [{}, {"delay": 60}, {"delay": dt.timedelta(0)}], ids=["now", "later", "no delay"])
def test_an_expiry_in_the_past(engine: Engine, expires: Any, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match="is not after the task's due time by the clock of this machine; it would"):
        engine.push("x", expires=expires, **options)
    assert counted(engine).scheduled == 0


def test_expiries_and_due_times_that_are_counted_from_different_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused only when they are in the wrong order by the clock of this machine."""
    now = LATER_MS - 86_400_000
    monkeypatch.setattr(checks, "clocks", [lambda: now])
    ends = (now + 5000) / 1000
    assert expiry_spec(ends, -4999) == now + 5000
    assert expiry_spec(ends, -4989, window_ms=10) == now + 5000  # the window's last ms is 9 later
    assert expiry_spec(5, now + 4999) == -5000
    assert expiry_spec(5, now + 4989, window_ms=10) == -5000
    for expires, due, window_ms in (
        *((ends, -5000, 0), (ends, -4991, 10)),
        *((5, now + 5000, 0), (5, now + 4991, 10), (5, LATER_MS, 0)),
    ):
        with pytest.raises(InvalidOption, match="by the clock of this machine; it would never be handled"):
            expiry_spec(expires, due, window_ms=window_ms)


@pytest.mark.parametrize(
    ("expires", "error", "text"),
    [
        (0, InvalidOption, "expires can't be 0; give more than 0"),
        (-5, InvalidOption, "expires can't be -5"),
        (float("nan"), InvalidOption, "expires can't be nan"),
        (dt.timedelta(0), InvalidOption, "expires can't be"),
        ("5", InvalidOption, "expires can't be '5'"),
        (True, InvalidOption, "expires can't be True"),
        (float("inf"), InvalidDelay, "expires can't be inf"),
        (dt.datetime(2100, 1, 1), NaiveDatetime, "^expires=.* has no time zone"),
    ],
)
def test_an_impossible_expiry(engine: Engine, expires: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        engine.push("x", expires=expires)
    assert counted(engine).scheduled == 0


def test_in_time_it_is_handled(running: Engine) -> None:
    for expires in (FAR_S, dt.timedelta(hours=1), LATER, time.time() + FAR_S):
        id = running.push("x", expires=expires)
        consumer = running.consumer()
        (delivery,) = claim(consumer, 1)
        assert delivery.id == id
        consumer.ack(delivery)


def test_too_late_it_is_buried(running: Engine) -> None:
    running.pause("")
    ids = running.push_many([Task(n, expires=0.05 + n * 1e-9) for n in range(20)])
    ids += [running.push("at", expires=time.time() + 0.05), running.push("own", id="own", expires=0.05)]
    fresh = running.push("fresh", expires=FAR_S)
    wait_until(lambda: running.stats().ready == 23, "all are ready")
    until = time.monotonic() + 0.1
    wait_until(lambda: time.monotonic() > until, "they have expired")
    running.resume("")
    consumer, given = running.consumer(), list[str]()

    def all_met() -> bool:
        given.extend(d.id for d in consumer.claim(10))
        return counted(running).ready == 0

    wait_until(all_met, "all are met")
    assert given == [fresh]
    assert {task.id: task.reason for task in listed(running, state="dead")} == dict.fromkeys(ids, "expired")


def claimed_in_time(engine: Engine, consumer: Consumer) -> tuple[Delivery, float]:
    """A delivery of a task that is good for a short time only; that time, counted from its push.

    Where it was over before the claim, because the machine stood still: of another that is good for longer.
    """
    for expires in (0.1, 1.0, 5.0):
        id, deliveries = engine.push("x", expires=expires), list[Delivery]()

        def met() -> bool:
            deliveries.extend(consumer.claim(1, wait=0.1))  # noqa: B023  called at once
            return bool(deliveries) or state_of(engine, id) == "dead"  # noqa: B023

        wait_until(met, f"{id} is claimed, or has expired")
        if deliveries:
            assert [delivery.id for delivery in deliveries] == [id]
            return deliveries[0], expires
    raise AssertionError("even a task that is good for 5 s was not given out")


def test_a_failed_task_that_has_expired_is_not_tried_again(running: Engine) -> None:
    consumer = running.consumer()
    delivery, expires = claimed_in_time(running, consumer)
    consumer.retry(delivery, delay=expires + 0.1)
    given: list[Delivery] = []

    def buried() -> bool:
        given.extend(consumer.claim(1, wait=0.1))
        return state_of(running, delivery.id) == "dead"

    wait_until(buried, "it is buried")
    assert given == []
    task = running.get(delivery.id)
    assert task is not None
    assert (task.state, task.failures) == ("dead", 1)
    assert task.reason == "expired; its last attempt failed:\nretried"


def test_what_was_claimed_in_time_may_finish(running: Engine) -> None:
    consumer = running.consumer()
    delivery, expires = claimed_in_time(running, consumer)
    until = time.monotonic() + expires
    wait_until(lambda: time.monotonic() > until, "it has expired")
    consumer.extend(delivery, 30)
    consumer.ack(delivery)
    assert state_of(running, delivery.id) == "gone"


def test_a_replacing_push_brings_its_own_expiry(running: Engine) -> None:
    put(running, "ready", id="one", expires=0.05)
    until = time.monotonic() + 0.05
    wait_until(lambda: time.monotonic() > until, "it has expired")
    running.push("new", id="one", on_conflict="replace", expires=FAR_S)
    (delivery,) = claim(running.consumer(), 1)
    assert delivery.payload == "new"
