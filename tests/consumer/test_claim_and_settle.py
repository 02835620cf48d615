"""The consumer: claim, ack, retry, bury, extend, leases that run out, and priorities."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

import pytest

from shardq import Consumer, Engine, LeaseLost, Task
from tests.support.engines import Engines
from tests.support.states import FAR_S, claim, put, ready_of, state_of
from tests.support.waiting import wait_until


def ready(engine: Engine, count: int, topic: str = "") -> list[str]:
    """So many tasks in their ready lists."""
    ids: list[str] = [*engine.push_many([Task(n, topic=topic) for n in range(count)])]
    wait_until(lambda: ready_of(engine, topic) == count, f"{count} tasks are ready")
    return ids


def test_a_delivery(running: Engine) -> None:
    id = running.push({"n": 1}, topic="email", headers={"k": "v"})
    (delivery,) = claim(running.consumer("email"), 1)
    assert (delivery.id, delivery.topic, delivery.payload) == (id, "email", {"n": 1})
    assert (delivery.attempt, delivery.failures, delivery.lapses, delivery.headers) == (1, 0, 0, {"k": "v"})


@pytest.mark.parametrize("most", [1, 2, 3, 10, 49])
def test_a_claim_never_gives_more_than_asked_for(running: Engine, consumer: Consumer, most: int) -> None:
    ready(running, 50)
    given: list[str] = []
    while deliveries := consumer.claim(most):
        assert len(deliveries) <= most
        given += [d.id for d in deliveries]
    assert len(given) == len(set(given)) == 50


def test_one_claim_gets_what_there_is(running: Engine, consumer: Consumer) -> None:
    ready(running, 30)
    consumer.claim(1)
    assert len(consumer.claim(100)) == 29


def test_a_claim_waits_for_the_first(running: Engine, consumer: Consumer) -> None:
    began = time.monotonic()
    running.push("x", delay=0.3)
    (delivery,) = consumer.claim(10, wait=60)
    assert delivery.payload == "x"
    assert 0.2 < time.monotonic() - began < 15  # neither before the task nor as long as it may


def test_a_claim_that_waits_in_vain(running: Engine, consumer: Consumer) -> None:
    began = time.monotonic()
    assert consumer.claim(10, wait=0.2) == []
    assert 0.2 <= time.monotonic() - began < 10


def test_a_consumer_gets_its_topics_only(running: Engine) -> None:
    put(running, "ready", topic="email")
    assert running.consumer().claim(10) == []
    assert running.consumer("sms").claim(10) == []
    assert len(running.consumer(["sms", "email"]).claim(10)) == 1


def test_topics_are_served_in_their_order(running: Engine) -> None:
    for topic in ("low", "middle", "high"):
        ready(running, 20, topic)
    order = ("high", "middle", "low")
    consumer = running.consumer(order)
    [first] = consumer.claim(1)  # from one shard, which may have none of the first topic; then it knows what there is
    left = ["high"] * 20 + ["middle"] * 20 + ["low"] * 20
    left.remove(first.topic)
    claims = [sorted((d.topic for d in consumer.claim(3)), key=order.index) for _ in range(20)]
    topics = [topic for claim in claims for topic in claim]
    assert topics == left


def test_ack_removes_the_task(running: Engine, consumer: Consumer) -> None:
    ids = ready(running, 40)
    deliveries = claim(consumer, 40)
    assert {state_of(running, id) for id in ids[:3]} == {"leased"}
    consumer.ack(deliveries[0])
    consumer.ack(d for d in deliveries[1:])
    consumer.ack([])
    stats = running.stats()
    assert (stats.leased, stats.ready, stats.scheduled, stats.dead) == (0, 0, 0, 0)
    assert {state_of(running, id) for id in ids} == {"gone"}


def test_retry_now(running: Engine, consumer: Consumer) -> None:
    id = running.push("x")
    (first,) = claim(consumer, 1)
    consumer.retry(first)
    (second,) = claim(consumer, 1)
    assert (second.id, second.attempt, second.failures, second.lapses) == (id, 2, 1, 0)
    with pytest.raises(LeaseLost):
        consumer.ack(first)
    consumer.ack(second)
    assert state_of(running, id) == "gone"


def test_retry_later(running: Engine, consumer: Consumer) -> None:
    id = running.push("x")
    consumer.retry(claim(consumer, 1), delay=FAR_S, reason="busy")
    task = running.get(id)
    assert task is not None
    assert (task.state, task.attempt, task.failures) == ("scheduled", 2, 1)


def test_the_last_attempt(running: Engine, consumer: Consumer) -> None:
    id = running.push("x", max_attempts=2)
    consumer.retry(claim(consumer, 1))
    consumer.retry(claim(consumer, 1), reason="it broke twice")
    task = running.get(id)
    assert task is not None
    assert (task.state, task.reason, task.failures) == ("dead", "it broke twice", 2)


def test_the_attempt_of_a_dead_task_is_its_last(running: Engine, consumer: Consumer) -> None:
    id = running.push("x", max_attempts=2)
    for attempt in (1, 2):
        (delivery,) = consumer.claim(1, wait=30)
        assert delivery.attempt == attempt
        consumer.retry(delivery)
    found, listed = running.get(id), running.tasks(state="dead")
    assert found is not None
    assert (found.state, found.attempt, found.failures) == ("dead", 2, 2)
    assert [task.attempt for task in listed] == [2]
    running.requeue(id, delay=60)
    requeued = running.get(id)
    assert requeued is not None
    assert requeued.attempt == 1


def test_the_engines_own_limit_of_attempts(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=1, max_attempts=1)
    engine.start()
    id = engine.push("x")
    consumer = engine.consumer()
    consumer.retry(claim(consumer, 1))
    assert state_of(engine, id) == "dead"


def test_bury(running: Engine, consumer: Consumer) -> None:
    id = running.push("x")
    consumer.bury(claim(consumer, 1), "of no use")
    task = running.get(id)
    assert task is not None
    assert (task.state, task.reason, task.deadline) == ("dead", "of no use", None)
    assert running.stats().dead == 1


def test_snooze(running: Engine, consumer: Consumer) -> None:
    """It comes again as it was, and no attempt is counted, not even the only one."""
    ids = [running.push({"n": n}, id=f"own-{n}", max_attempts=1, headers={"k": "v"}) for n in range(3)]
    one, *many = claim(consumer, 3)
    consumer.snooze(one, 0)
    (again,) = claim(consumer, 1)
    assert (again.id, again.payload, again.headers) == (one.id, one.payload, {"k": "v"})
    assert (again.attempt, again.failures, again.lapses) == (1, 0, 0)
    with pytest.raises(LeaseLost) as caught:
        consumer.snooze(one, 0)
    assert caught.value.ids == [one.id]
    began = time.time()
    consumer.snooze(many, dt.timedelta(seconds=FAR_S))
    for delivery in many:
        task = running.get(delivery.id)
        assert task is not None
        assert task.due is not None
        assert (task.state, task.failures, task.lapses) == ("scheduled", 0, 0)
        assert task.due.timestamp() >= began + FAR_S - 60
        assert running.reschedule(delivery.id, delay=0)
    assert {delivery.id for delivery in claim(consumer, 2)} == set(ids) - {one.id}


def test_a_snooze_keeps_the_attempts_so_far(running: Engine, consumer: Consumer) -> None:
    running.push("x", max_attempts=2)
    (delivery,) = claim(consumer, 1)
    consumer.retry(delivery)
    for _ in range(3):
        (delivery,) = claim(consumer, 1)
        assert (delivery.attempt, delivery.failures) == (2, 1)
        consumer.snooze(delivery, 0.001)
    (delivery,) = claim(consumer, 1)
    consumer.retry(delivery)
    assert state_of(running, delivery.id) == "dead"


def test_a_lease_that_runs_out(running: Engine) -> None:
    id = running.push("x")
    holder = running.consumer(lease=0.2)
    (first,) = claim(holder, 1)
    (second,) = claim(running.consumer(), 1)
    assert (second.id, second.attempt, second.failures, second.lapses) == (id, 2, 0, 1)
    orders: list[Callable[[], None]] = [
        lambda: holder.ack(first),
        lambda: holder.retry(first),
        lambda: holder.bury(first, "no"),
        lambda: holder.extend(first, 5),
    ]
    for order in orders:
        with pytest.raises(LeaseLost, match="is no longer held") as caught:
            order()
        assert caught.value.ids == [id]
    assert state_of(running, id) == "leased"  # nothing was changed
    running.consumer().ack(second)  # any consumer may settle a delivery
    assert state_of(running, id) == "gone"


def test_what_is_settled_twice_is_said_so(running: Engine) -> None:
    ready(running, 1)
    consumer = running.consumer()
    (delivery,) = claim(consumer, 1)
    consumer.ack(delivery)
    with pytest.raises(LeaseLost, match="the task was settled before, or its lease ran out and another consumer"):
        consumer.ack(delivery)


def test_a_late_ack_is_good_until_the_lease_is_taken_back(running: Engine) -> None:
    id = put(running, "ready")
    running.stop()  # nobody takes it back
    holder = running.consumer(lease=0.2)
    (delivery,) = claim(holder, 1)
    wait_until(lambda: _overdue(running, id), "its deadline is past")
    holder.ack(delivery)
    assert state_of(running, id) == "gone"


def _overdue(engine: Engine, id: str) -> bool:
    task = engine.get(id)
    return task is not None and task.deadline is not None and task.deadline.timestamp() < time.time()


def test_an_extended_lease(running: Engine) -> None:
    id = running.push("x")
    holder = running.consumer(lease=60)
    (delivery,) = claim(holder, 1)
    holder.extend(delivery, 600)
    task = running.get(id)
    assert task is not None
    assert task.deadline is not None
    assert task.deadline.timestamp() > time.time() + 300
    holder.extend([delivery], 0.05)  # and it may be shortened
    wait_until(lambda: state_of(running, id) == "ready", "the shorter lease has run out")


def test_a_task_that_loses_every_worker(running: Engine) -> None:
    id = running.push("x", max_attempts=2)
    holder = running.consumer(lease=0.05)
    claim(holder, 1)
    claim(holder, 1)
    wait_until(lambda: state_of(running, id) == "dead", "it is given up")
    task = running.get(id)
    assert task is not None
    assert (task.reason, task.lapses, task.failures) == ("lost with its worker", 2, 0)
    stats = running.stats()
    assert sum(shard.reaped or 0 for shard in stats.shards) == 1
    assert sum(shard.buried or 0 for shard in stats.shards) == 1
