"""The assertions: what they find, and what they show instead."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from unittest.mock import ANY

import pytest

import shardq
from shardq.testing import Clock, assert_not_pushed, assert_pushed, assert_ready, drain, tasks

START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


@pytest.fixture
def clock(url: str) -> Iterator[Clock]:
    with Clock(url, start=START) as clock:
        yield clock


@pytest.fixture
def engine(clock: Clock) -> shardq.Engine:
    return clock.adopt(shardq.Engine(shards=3))


def test_a_failure_shows_what_there_is(clock: Clock, engine: shardq.Engine) -> None:
    id = engine.push("hi", delay=86_400 + 0.5)
    ready = engine.push({"text": "x" * 100}, topic="mail", id="mail-1")
    consumer = engine.consumer("dead")
    dead = engine.push("never", topic="dead")
    consumer.bury(consumer.claim(1), "no such address")
    with pytest.raises(AssertionError) as failure:
        assert_ready(engine, "hi", topic="")
    head, *lines = str(failure.value).splitlines()
    assert head == (
        "there is no ready task of topic (default) with payload 'hi'; at 2030-01-01 00:00:00.000 the engine has:"
    )
    rows = [line.split(maxsplit=1) for line in lines]
    assert [state for state, _ in rows] == ["state", "ready", "scheduled", "dead"]
    assert "mail   {'text': 'xxx" in rows[1][1]
    assert rows[1][1].endswith(f"…  {ready}")
    assert rows[2][1].startswith("2030-01-02 00:00:00.500 (in 1d 0:00:00.500)")
    assert rows[2][1].endswith(id)
    assert "no such address" in rows[3][1]
    assert rows[3][1].endswith(dead)


def test_an_engine_that_goes_by_no_clock_is_named_as_such(
    clock: Clock, engine: shardq.Engine, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.testing.asserts.PATIENCE_S", 0.05)
    with shardq.Engine(url, name=name, shards=1) as other:
        other.push("hi", delay=60)
        clock.advance(minutes=1)
        with pytest.raises(AssertionError, match=r"by its server's clock, not by the test's: give it to clock\.adopt"):
            assert_ready(other, "hi")


def test_an_empty_engine_is_called_that(engine: shardq.Engine) -> None:
    with pytest.raises(AssertionError, match=r"the engine has:\nno tasks$"):
        assert_pushed(engine, "mail")


def test_long_tables_end(engine: shardq.Engine) -> None:
    engine.push_many([shardq.Task(n, delay=n) for n in range(1000)])
    with pytest.raises(AssertionError) as failure:
        assert_pushed(engine, payload="hi")
    assert str(failure.value).endswith("… and 970 more")


def test_pushed_tasks_are_found_by_due_time_and_delay(clock: Clock, engine: shardq.Engine) -> None:
    id = engine.push("hi", delay=3600, topic="mail")
    for found in (
        assert_pushed(engine),
        assert_pushed(engine, "mail", "hi"),
        assert_pushed(engine, "mail", delay=3600),
        assert_pushed(engine, delay=dt.timedelta(hours=1)),
        assert_pushed(engine, due=START + dt.timedelta(hours=1)),
        assert_pushed(engine, id=id),
        assert_pushed(engine, due=START + dt.timedelta(hours=1, minutes=1), within=60),
    ):
        assert (found.id, found.due) == (id, START + dt.timedelta(hours=1))
    for wrong in ({"delay": 3599}, {"delay": 3601}, {"due": START}, {"payload": "he"}, {"topic": ""}, {"id": "x"}):
        with pytest.raises(AssertionError):
            assert_pushed(engine, **wrong)
    clock.advance(minutes=59)
    assert_pushed(engine, delay=60)
    with pytest.raises(AssertionError):
        assert_ready(engine)
    clock.advance(minutes=1)
    assert_ready(engine, topic="mail", payload="hi")
    assert_pushed(engine, "mail")
    with pytest.raises(AssertionError, match=r"due at 2030-01-01 01:00:00\.000;"):
        assert_pushed(engine, "mail", delay=0)
    with pytest.raises(shardq.errors.InvalidOption, match="not both"):
        assert_pushed(engine, delay=1, due=START)


def test_payloads_are_compared_as_they_come_back(engine: shardq.Engine) -> None:
    engine.push({"at": START, "pair": (1, 2)})
    assert_ready(engine, {"at": START, "pair": (1, 2)})
    assert_ready(engine, {"at": "2030-01-01T00:00:00Z", "pair": [1, 2]})
    assert_ready(engine, {"at": ANY, "pair": [1, 2]})
    with pytest.raises(AssertionError):
        assert_ready(engine, {"at": START})


def test_what_was_not_pushed(engine: shardq.Engine) -> None:
    assert_not_pushed(engine)
    id = engine.push("hi", delay=5, topic="mail")
    assert_not_pushed(engine, "other")
    assert_not_pushed(engine, "mail", "ho")
    with pytest.raises(AssertionError, match=f"(?s)should be no scheduled, held or ready task of topic 'mail'.*{id}"):
        assert_not_pushed(engine, "mail")
    engine.cancel(id)
    assert_not_pushed(engine)


def test_all_states_are_listed_in_order(clock: Clock, engine: shardq.Engine) -> None:
    late, early = engine.push("late", delay=20), engine.push("early", delay=10)
    leased = engine.push("leased", topic="mail", headers={"a": "b"}, max_attempts=3, url="https://a/")
    [delivery] = engine.consumer("mail").claim(1)
    ready = engine.push("ready", topic="mail")
    assert [(task.id, task.state) for task in tasks(engine)] == [
        (ready, "ready"),
        (leased, "leased"),
        (early, "scheduled"),
        (late, "scheduled"),
    ]
    assert delivery.id == leased
    [_, task] = tasks(engine, topic="mail")
    assert (task.headers, task.max_attempts, task.topic, task.url) == ({"a": "b"}, 3, "mail", "https://a/")


def test_drain_takes_what_is_ready_of_all_topics(clock: Clock, engine: shardq.Engine) -> None:
    engine.push_many([shardq.Task(n, topic=f"t{n % 3}") for n in range(2500)])
    engine.push("default")
    engine.push("later", delay=60)
    drained = drain(engine)
    assert sorted(str(delivery.payload) for delivery in drained) == sorted(["default", *map(str, range(2500))])
    assert [task.payload for task in tasks(engine)] == ["later"]
    engine.push_many([shardq.Task(topic, topic=topic) for topic in ("t1", "t2")])
    assert [delivery.payload for delivery in drain(engine, topic="t2")] == ["t2"]
    assert drain(engine, topic="unheard-of") == []


def test_engines_without_a_clock_are_waited_for(url: str, name: str) -> None:
    with shardq.Engine(url, name=name, shards=2) as engine:
        engine.start()
        engine.push("hi", delay=0.2)
        assert_pushed(engine, payload="hi")
        assert_ready(engine, "hi")
        assert [delivery.payload for delivery in drain(engine)] == ["hi"]


def test_something_else_is_no_engine() -> None:
    with pytest.raises(shardq.errors.InvalidOption, match="is not an engine"):
        assert_ready("engine")  # type: ignore[call-overload]


def test_payloads_that_are_encrypted(clock: Clock) -> None:
    codec = shardq.codecs.encrypted(b"a" * 43 + b"=")
    engine = clock.adopt(shardq.Engine(shards=3, codec=codec))
    engine.push({"pair": (1, 2)}, topic="mail")
    assert_pushed(engine, "mail", {"pair": (1, 2)})
    assert_not_pushed(engine, "mail", {"pair": (1, 3)})
    assert [task.payload for task in tasks(engine)] == [{"pair": [1, 2]}]
