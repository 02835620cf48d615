"""cancel, reschedule, requeue and get, of a task in every state."""

from __future__ import annotations

import datetime as dt

import pytest

from shardq import Consumer, Engine, Outcome
from shardq.core.model.task import State
from tests.support.engines import SHARDS
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, STATES, claim, put, state_of
from tests.support.waiting import wait_until

LATER = dt.datetime(2100, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("scheduled", "cancelled"), ("ready", "cancelled"), ("leased", "running"), ("dead", "cancelled")],
)
def test_cancel(running: Engine, state: State, outcome: str) -> None:
    id = put(running, state)
    answer = running.cancel(id)
    assert answer == outcome
    assert bool(answer) == (outcome == "cancelled")
    assert state_of(running, id) == ("gone" if answer else "leased")
    assert running.consumer().claim(10) == []


@pytest.mark.parametrize("state", ["scheduled", "ready", "dead"])
def test_a_cancelled_task_leaves_nothing(running: Engine, servers: Servers, name: str, state: State) -> None:
    before = set(servers.held(name))
    id = put(running, state, topic="email")
    assert running.cancel(id)
    running.consumer("email").claim(10)  # what still stood in the ready list goes when it is met
    counts = {keys.topics.encode() for keys in keys_of(name, SHARDS)}
    assert set(servers.held(name)) - before <= counts


@pytest.mark.parametrize(
    ("state", "outcome"), [("scheduled", "moved"), ("ready", "moved"), ("leased", "running"), ("dead", "dead")]
)
def test_reschedule(running: Engine, state: State, outcome: str) -> None:
    id = put(running, state)
    answer = running.reschedule(id, at=LATER)
    assert answer == outcome
    assert bool(answer) == (outcome == "moved")
    task = running.get(id)
    assert task is not None
    assert (task.state, task.due) == (("scheduled", LATER) if answer else (state, None))
    assert running.consumer().claim(10) == []


def test_a_rescheduled_task_comes_once(running: Engine, consumer: Consumer) -> None:
    id = put(running, "ready")
    for _ in range(3):
        assert running.reschedule(id, delay=FAR_S)
        assert running.reschedule(id, delay=0)
        wait_until(lambda: state_of(running, id) == "ready", "it is ready again")
    (delivery,) = claim(consumer, 1)
    assert delivery.id == id
    assert consumer.claim(10) == []


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("scheduled", "scheduled"), ("ready", "ready"), ("leased", "running"), ("dead", "requeued")],
)
def test_requeue(running: Engine, state: State, outcome: str) -> None:
    id = put(running, state)
    answer = running.requeue(id, at=LATER)
    assert answer == outcome
    assert bool(answer) == (outcome == "requeued")
    task = running.get(id)
    assert task is not None
    assert task.state == ("scheduled" if answer else state)
    if answer:
        assert (task.due, task.attempt, task.failures, task.reason) == (LATER, 1, 0, None)


@pytest.mark.parametrize("id", ["nobody", "email/nobody"])
def test_an_id_that_is_gone(engine: Engine, id: str) -> None:
    assert engine.get(id) is None
    assert engine.cancel(id) is Outcome.GONE
    assert engine.reschedule(id, delay=1) is Outcome.GONE
    assert engine.requeue(id) is Outcome.GONE
    assert not Outcome.GONE
    assert "an id includes the topic, as in mail/order-42" in repr(engine.cancel(id))
    assert str(engine.cancel(id)) == "gone"


@pytest.mark.parametrize("state", STATES)
def test_get(running: Engine, servers: Servers, name: str, state: State) -> None:
    id = put(running, state, id="one", topic="email", payload=[1, {"a": None}], headers={"k": "v"}, max_attempts=3)
    task = running.get(id)
    assert task is not None
    assert (task.id, task.topic, task.state) == ("email/one", "email", state)
    assert (task.payload, task.headers, task.max_attempts) == ([1, {"a": None}], {"k": "v"}, 3)
    assert (task.due is not None) == (state == "scheduled")
    assert (task.deadline is not None) == (state == "leased")
    assert task.reason == ("of no use" if state == "dead" else None)
    assert (task.failures, task.attempt) == ((1, 1) if state == "dead" else (0, 1))
    if task.deadline is not None:
        slot = keys_of(name, SHARDS)[running.topology.shard_of(id)].slot
        assert 0 < task.deadline.timestamp() * 1000 - servers.now_ms(slot) <= 60_000
