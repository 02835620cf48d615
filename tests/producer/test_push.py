"""push, one task at a time: what is stored, when it is due, and what the receipt says."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import pytest

from shardq import Conflict, Consumer, Engine
from shardq.core.layout.keys import shard_keys
from shardq.core.model.task import State
from tests.support.servers import Servers
from tests.support.states import FAR_S, STATES, claim, put, state_of
from tests.support.waiting import wait_until


def test_a_pushed_task(engine: Engine) -> None:
    receipt = engine.push({"order": 42}, delay=60)
    assert isinstance(receipt, str)
    assert (receipt.outcome, receipt.state) == ("pushed", None)
    task = engine.get(receipt)
    assert task is not None
    assert (task.id, task.topic, task.state, task.payload) == (receipt, "", "scheduled", {"order": 42})
    assert (task.attempt, task.failures, task.lapses) == (1, 0, 0)
    assert (task.deadline, task.reason, task.max_attempts, task.headers) == (None, None, None, {})


def test_a_delay_counts_by_the_servers_clock(engine: Engine, servers: Servers, name: str) -> None:
    receipt = engine.push("x", delay=60.5, id="one")
    slot = shard_keys(name, engine.topology.shard_of("one")).slot
    task = engine.get(receipt)
    assert task is not None
    assert task.due is not None
    left_ms = task.due.timestamp() * 1000 - servers.now_ms(slot)
    assert 50_000 < left_ms <= 60_501  # rounded up to the next ms


@pytest.mark.parametrize(
    "at",
    [
        dt.datetime(2100, 2, 3, 4, 5, 6, 789_000, tzinfo=dt.UTC),
        dt.datetime(2100, 2, 3, 6, 5, 6, 789_000, tzinfo=dt.timezone(dt.timedelta(hours=2))),
        dt.datetime(2100, 2, 3, 4, 5, 6, 788_001, tzinfo=dt.UTC),  # a fraction of a millisecond is rounded up
        4_105_310_706.789,
    ],
)
def test_an_instant(engine: Engine, at: float | dt.datetime) -> None:
    task = engine.get(engine.push("x", at=at))
    assert task is not None
    assert task.due == dt.datetime(2100, 2, 3, 4, 5, 6, 789_000, tzinfo=dt.UTC)


@pytest.mark.parametrize("options", [{}, {"delay": 0}, {"at": 1.0}, {"at": time.time() - 1}])
def test_what_is_due_now_is_ready_at_once(running: Engine, options: dict[str, Any]) -> None:
    receipt = running.push("x", **options)
    wait_until(lambda: state_of(running, receipt) == "ready", "it is ready")


def test_a_timedelta(engine: Engine) -> None:
    assert state_of(engine, engine.push("x", delay=dt.timedelta(hours=1))) == "scheduled"


def test_ids(engine: Engine) -> None:
    assert engine.push("x", delay=FAR_S, id="mine") == "mine"
    assert engine.push("x", delay=FAR_S, id="mine", topic="email") == "email/mine"
    fresh = engine.push("x", delay=FAR_S, topic="email")
    assert fresh.startswith("email/")
    assert fresh != engine.push("x", delay=FAR_S, topic="email")
    task = engine.get("email/mine")
    assert task is not None
    assert task.topic == "email"


def test_headers_and_attempts_travel_with_the_task(running: Engine) -> None:
    receipt = running.push("x", headers={"trace": "ä1"}, max_attempts=7)
    task = running.get(receipt)
    assert task is not None
    assert (task.headers, task.max_attempts) == ({"trace": "ä1"}, 7)
    (delivery,) = claim(running.consumer(), 1)
    assert delivery.headers == {"trace": "ä1"}
    (other,) = claim(running.consumer(), 1) if running.push("y") else []
    assert other.headers == {}


@pytest.mark.parametrize("state", STATES)
def test_an_id_that_is_taken_is_kept(running: Engine, state: State) -> None:
    put(running, state, id="one")
    again = running.push("second", delay=1, id="one")
    assert (again, again.outcome, again.state) == ("one", "kept", state)
    assert again  # a receipt is true, whatever it says
    task = running.get("one")
    assert task is not None
    assert (task.payload, task.state) == ("first", state)


@pytest.mark.parametrize("state", STATES)
def test_an_id_that_is_taken_is_rejected(running: Engine, state: State) -> None:
    put(running, state, id="one")
    with pytest.raises(Conflict, match=f"id 'one' is already {state}; push with on_conflict=") as caught:
        running.push("second", id="one", on_conflict="reject")
    assert (caught.value.id, caught.value.state) == ("one", state)
    task = running.get("one")
    assert task is not None
    assert (task.payload, task.state) == ("first", state)


@pytest.mark.parametrize("state", STATES)
def test_an_id_that_is_taken_is_replaced(running: Engine, state: State) -> None:
    put(running, state, id="one")
    again = running.push("second", delay=FAR_S, id="one", on_conflict="replace")
    assert (again, again.outcome, again.state) == ("one", "replaced", None)
    task = running.get("one")
    assert task is not None
    assert (task.payload, task.state, task.attempt, task.reason) == ("second", "scheduled", 1, None)
    # Whatever was ready under the id is not given out, and the new task comes once, in its time.
    assert running.consumer().claim(10) == []
    assert running.reschedule("one", delay=0)
    (delivery,) = claim(running.consumer(), 1)
    assert (delivery.id, delivery.payload, delivery.attempt) == ("one", "second", 1)
    running.consumer().ack(delivery)
    assert state_of(running, "one") == "gone"
    assert running.consumer().claim(10) == []


def test_an_id_is_seen_while_its_window_is_open(running: Engine, consumer: Consumer) -> None:
    running.push("first", id="one", dedup=60)
    consumer.ack(claim(consumer, 1))
    again = running.push("second", id="one")
    assert (again.outcome, again.state) == ("seen", None)
    with pytest.raises(Conflict, match="already seen"):
        running.push("second", id="one", on_conflict="reject")
    assert state_of(running, "one") == "gone"
    assert running.push("third", delay=FAR_S, id="one", on_conflict="replace").outcome == "pushed"


def test_an_id_is_free_when_its_window_has_ended(running: Engine, consumer: Consumer) -> None:
    running.push("first", id="one", dedup=0.2)
    consumer.ack(claim(consumer, 1))
    wait_until(lambda: running.push("second", delay=FAR_S, id="one").outcome == "pushed", "the id is free again")
    task = running.get("one")
    assert task is not None
    assert task.payload == "second"


def test_an_id_is_free_again_without_a_window(running: Engine, consumer: Consumer) -> None:
    running.push("first", id="one")
    consumer.ack(claim(consumer, 1))
    assert running.push("second", delay=FAR_S, id="one").outcome == "pushed"


def test_shards_are_those_of_the_name(engine: Engine, url: str, name: str, caplog: pytest.LogCaptureFixture) -> None:
    receipt = engine.push("x", delay=FAR_S)
    with Engine(url, name=name, shards=9) as other:
        assert other.topology.shards == 4
        assert state_of(other, receipt) == "scheduled"
    assert f"'{name}' has 4 shards, not the 9 asked for: the stored number counts" in caplog.text
    caplog.clear()
    with Engine(url, name=name) as other:
        assert other.topology.shards == 4
    assert "asked for" not in caplog.text
