"""A consumer can settle a delivery while it holds the lease; after that its operations change nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardq import Consumer, Delivery, Engine, LeaseLost, Task
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, counted, put, state_of
from tests.support.waiting import wait_until

Operation = Callable[[Consumer, Delivery], None]

OPERATIONS: dict[str, Operation] = {
    "ack": lambda consumer, delivery: consumer.ack(delivery),
    "retry": lambda consumer, delivery: consumer.retry(delivery, delay=1),
    "bury": lambda consumer, delivery: consumer.bury(delivery, "why"),
    "extend": lambda consumer, delivery: consumer.extend(delivery, 500),
}


@pytest.fixture(params=OPERATIONS)
def operation(request: pytest.FixtureRequest) -> Operation:
    return OPERATIONS[request.param]


def lost(engine: Engine, id: str) -> bool:
    task = engine.get(id)
    return task is not None and task.lapses > 0


def stopped(running: Engine, servers: Servers, name: str) -> dict[bytes, bytes]:
    """All that is stored when nothing more is written."""
    running.stop()
    # a server that stood still may have the sign-off to read yet, which nobody waits for long; not after this answer
    servers.ask_all("PING")
    return servers.held(name)


def test_a_late_operation_changes_nothing(running: Engine, servers: Servers, name: str, operation: Operation) -> None:
    id = running.push("x")
    holder, other = running.consumer(lease=0.15), running.consumer()
    (late,) = claim(holder, 1)
    wait_until(lambda: lost(running, id), "its lease has run out")
    (present,) = claim(other, 1)
    before = stopped(running, servers, name)
    with pytest.raises(LeaseLost) as caught:
        operation(holder, late)
    assert caught.value.ids == [id]
    assert servers.held(name) == before
    other.ack(present)
    assert state_of(running, id) == "gone"


def test_an_ack_that_crosses_extensions_is_good(running: Engine, consumer: Consumer) -> None:
    running.push_many([Task(n) for n in range(200)])
    deliveries = claim(consumer, 200)
    ended = threading.Event()
    heart = running.consumer()
    beats: list[bool] = []

    def beat() -> None:
        while not ended.is_set():
            # some are acknowledged meanwhile
            with contextlib.suppress(LeaseLost):
                heart.extend(deliveries, 60)
            beats.append(True)

    with ThreadPoolExecutor(1) as threads:
        beating = threads.submit(beat)
        try:
            for number, delivery in enumerate(deliveries):
                if number % 50 == 0:
                    # the acks must not all be done before the other thread has begun
                    known = len(beats)
                    wait_until(lambda: beating.done() or len(beats) > known, "it beats")  # noqa: B023  called at once
                consumer.ack(delivery)
        finally:
            ended.set()
        beating.result(30)
    assert counted(running).leased == 0


def test_a_lease_that_was_revoked_by_a_replacing_push(running: Engine, operation: Operation) -> None:
    consumer = running.consumer()
    put(running, "ready", id="one", payload="old")
    (delivery,) = claim(consumer, 1)
    running.push("new", id="one", on_conflict="replace", delay=FAR_S)
    if operation is OPERATIONS["ack"]:
        operation(consumer, delivery)  # nobody's mistake
    else:
        with pytest.raises(LeaseLost):
            operation(consumer, delivery)
    task = running.get("one")
    assert task is not None
    assert (task.state, task.payload, task.failures) == ("scheduled", "new", 0)


def test_many_at_once_over_all_shards(running: Engine, consumer: Consumer) -> None:
    ids = running.push_many([Task(n) for n in range(2500)])
    deliveries = claim(consumer, 2500)
    consumer.extend(deliveries, 60)
    consumer.bury(deliveries[:500], "in one trip")
    consumer.retry(deliveries[500:1000], delay=FAR_S)
    consumer.ack(deliveries[1000:])
    stats = counted(running)
    assert (stats.dead, stats.scheduled, stats.leased, stats.ready) == (500, 500, 0, 0)
    assert {d.id for d in deliveries} == set(ids)


def test_some_of_many_are_lost(running: Engine, operation: Operation) -> None:
    running.push_many([Task(n) for n in range(40)])
    long = running.consumer()
    gone, held = claim(long, 20), claim(long, 20)
    # made short when all are claimed: what comes back earlier would be claimed again
    long.extend(gone, 0.05)
    wait_until(lambda: all(lost(running, d.id) for d in gone), "the short leases have run out")
    with pytest.raises(LeaseLost) as caught:
        {
            "ack": lambda: long.ack([*gone, *held]),
            "retry": lambda: long.retry([*gone, *held], delay=FAR_S),
            "bury": lambda: long.bury([*gone, *held], "why"),
            "extend": lambda: long.extend([*gone, *held], 60),
        }[next(name for name, each in OPERATIONS.items() if each is operation)]()
    assert sorted(caught.value.ids) == sorted(d.id for d in gone)
    states = {state_of(running, d.id) for d in held}
    expected = {"ack": "gone", "retry": "scheduled", "bury": "dead", "extend": "leased"}
    assert states == {expected[next(name for name, each in OPERATIONS.items() if each is operation)]}


def test_a_cancelled_ready_task_is_never_delivered(running: Engine, consumer: Consumer) -> None:
    ids = [put(running, "ready") for _ in range(20)]
    assert all(running.cancel(id) == "cancelled" for id in ids[::2])
    assert {d.id for d in claim(consumer, 10)} == set(ids[1::2])
    assert consumer.claim(20) == []
    assert {running.cancel(id).value for id in ids[::2]} == {"gone"}
    assert {running.cancel(id).value for id in ids[1::2]} == {"running"}
