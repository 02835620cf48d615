"""Tasks that failed and wait for another attempt: they are found, with the reason, and dealt with together."""

from __future__ import annotations

import time

import pytest

from shardq import Backoff, BulkResult, Delivery, Engine, Task
from shardq.errors import InvalidOption
from tests.support.engines import SHARDS, Engines
from tests.support.listed import listed
from tests.support.states import FAR_S, claim, counted, put, state_of
from tests.support.waiting import wait_until

BOOM = "Traceback (most recent call last):\n  File x\nKeyError: 'order-4711'"


def failed(engine: Engine, count: int, *, topic: str = "", reason: str = BOOM, delay: float = FAR_S) -> set[str]:
    """Tasks that have failed once, and wait."""
    ids: set[str] = set(engine.push_many([Task(n, topic=topic) for n in range(count)]))
    consumer = engine.consumer(topic, lease=60)
    deliveries = claim(consumer, count)
    assert {each.id for each in deliveries} == ids
    consumer.retry(deliveries, delay=delay, reason=reason)
    consumer.close()
    return ids


def reason_of(engine: Engine, id: str) -> str | None:
    task = engine.get(id)
    assert task is not None
    return task.reason


def test_what_waits_for_a_retry_is_found_with_its_reason(running: Engine) -> None:
    for state in ("scheduled", "leased", "dead", "ready"):
        put(running, state, topic="others")
    mail, other = failed(running, 5, topic="mail"), failed(running, 3, topic="other", reason="late")
    assert {task.id for task in running.tasks(failed=True)} == mail | other
    assert {task.id for task in running.tasks("mail", state="scheduled", failed=True)} == mail
    assert [(task.reason, task.failures) for task in running.tasks("other", failed=True)] == [("late", 1)] * 3
    assert {task.id for task in listed(running, failed=True, limit=2)} == mail | other
    assert {task.reason for task in listed(running, state="scheduled", topic="others")} == {None}
    seen = counted(running)
    assert (seen.scheduled, seen.retrying) == (9, 8)
    assert {topic: each.retrying for topic, each in seen.topics.items()} == {"others": 0, "mail": 5, "other": 3}
    assert not any(each.estimated for each in seen.topics.values())


def test_the_reason_stays_through_all_states(running: Engine) -> None:
    (id,) = failed(running, 1, reason="x" * 2000 + "\nżółć", delay=0)
    wait_until(lambda: state_of(running, id) == "ready", "its retry is due")
    reason = reason_of(running, id)
    assert reason is not None
    length = len(reason.encode())
    assert 1024 < length < 2048
    end = ("x" * 2000 + "\nżółć").encode()[-length:].decode()
    assert reason == end
    consumer = running.consumer(lease=60)
    (delivery,) = claim(consumer, 1)
    assert (delivery.payload, delivery.attempt, reason_of(running, id)) == (0, 2, end)
    consumer.snooze(delivery, delay=FAR_S)
    assert reason_of(running, id) == end
    running.reschedule(id, delay=0)
    (delivery,) = claim(consumer, 1)
    consumer.retry(delivery, delay=0, reason="another")
    assert reason_of(running, id) == "another"
    (delivery,) = claim(consumer, 1)
    consumer.bury(delivery, "of no use")
    assert reason_of(running, id) == "of no use"
    running.requeue(id, delay=FAR_S)
    # its attempts count anew
    assert reason_of(running, id) is None
    assert running.tasks(failed=True) == []


def test_a_task_tells_its_last_attempts(running: Engine) -> None:
    (id,) = failed(running, 1, delay=0)
    consumer = running.consumer(name="mine", lease=60)
    for reason in ("two", "three\x1e\x1f\n" + "é" * 150, "four", "five", "six"):
        (delivery,) = claim(consumer, 1)
        consumer.retry(delivery, reason=reason)
    info = running.get(id)
    assert info is not None
    assert (info.failures, info.reason) == (6, "six")
    assert [each.reason for each in info.attempts] == ["two", "é" * 100, "four", "five", "six"]
    assert {(each.process[:4], each.seconds) for each in info.attempts} == {("mine", None)}
    assert [each.at for each in info.attempts] == sorted(each.at for each in info.attempts)
    assert abs(info.attempts[-1].at.timestamp() - time.time()) < 60
    (delivery,) = claim(consumer, 1)
    consumer.bury(delivery, "of no use")
    (dead,) = running.tasks(state="dead")
    assert (dead.reason, [each.reason for each in dead.attempts][-2:]) == ("of no use", ["six", "of no use"])
    assert running.requeue_all(reason="of no use", everything=True).done == 1
    (delivery,) = claim(consumer, 1)
    consumer.retry(delivery, reason="anew", delay=FAR_S)
    info = running.get(id)
    assert info is not None
    assert [each.reason for each in info.attempts] == ["anew"]


def test_a_worker_notes_how_long_it_took(engines: Engines, running: Engine) -> None:
    def slow(delivery: Delivery) -> None:
        time.sleep(0.05)
        raise KeyError("order-4711")

    worker = running.worker(backoff=Backoff(base=FAR_S, cap=FAR_S))
    worker.on("mail")(slow)
    id = running.push(1, topic="mail")
    with engines.working(worker):
        wait_until(lambda: reason_of(running, id) is not None, "it failed")
    (task,) = running.tasks(failed=True)
    (attempt,) = task.attempts
    assert (attempt.reason, attempt.seconds is not None and 0.05 <= attempt.seconds < 30) == (
        "KeyError: 'order-4711'",
        True,
    )
    assert task.reason is not None
    assert task.reason.startswith("Traceback")


def test_all_of_a_reason_run_now_or_are_cancelled(running: Engine) -> None:
    never = running.push("never", delay=FAR_S, topic="mail")
    first, second = failed(running, 4, topic="mail"), failed(running, 3, topic="mail", reason="late")
    cause = "KeyError: 'order-#'"
    assert running.cancel_all("mail", failed=True, dry_run=True) == BulkResult(matched=7, done=0)
    assert running.cancel_all("mail", reason=cause, failed=True) == BulkResult(matched=4, done=4)
    assert running.cancel_all("mail", reason="no reason was given") == BulkResult(matched=0, done=0)
    assert {state_of(running, id) for id in first} == {"gone"}
    assert running.reschedule_all(failed=True, reason="late", delay=0) == BulkResult(matched=3, done=3)
    wait_until(lambda: {state_of(running, id) for id in second} == {"ready"}, "they are due")
    assert state_of(running, never) == "scheduled"
    failed(running, 2, topic="other")
    assert running.purge("other", failed=True) == 2


def test_what_has_expired_keeps_the_error(running: Engine) -> None:
    running.push("x", expires=1.5)
    consumer = running.consumer(lease=60)
    (delivery,) = claim(consumer, 1)
    consumer.retry(delivery, delay=1.6, reason=BOOM)

    def buried() -> bool:
        return not consumer.claim(1, wait=0.1) and state_of(running, delivery.id) == "dead"

    wait_until(buried, "it has expired")
    assert reason_of(running, delivery.id) == f"expired; its last attempt failed:\n{BOOM}"
    assert running.requeue_all(reason="KeyError: 'order-#'", everything=True).done == 1


@pytest.mark.slow
def test_the_reason_moves_with_its_task(running: Engine) -> None:
    ids = failed(running, 40)
    running.resize(SHARDS + 3)
    assert {(task.id, task.reason) for task in listed(running, failed=True)} == {(id, BOOM) for id in ids}


@pytest.mark.parametrize("more", [{"state": "ready"}, {"state": "dead"}, {"newest": True}, {"holder": "me"}], ids=str)
def test_nothing_else_waits_for_a_retry(engine: Engine, more: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="only"):
        engine.tasks(failed=True, **more)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="only scheduled and held tasks have a retry to wait for"):
        engine.requeue_all("mail", failed=True)
    with pytest.raises(InvalidOption, match="everything=True stands alone"):
        engine.cancel_all(everything=True, failed=True)
    with pytest.raises(InvalidOption, match="failed=1 is not possible"):
        engine.tasks(failed=1)  # type: ignore[arg-type]
