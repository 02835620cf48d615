"""The settings of an engine are stored with it: all of its processes go by them, whatever their constructors name."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from typing import Any

import pytest

from shardq import Backoff, Consumer, Delivery, Engine, Task
from shardq.core.layout.topology import EngineSettings
from shardq.errors import InvalidOption
from tests.support.engines import Engines
from tests.support.states import claim, counted, state_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

OTHERS = '{"max_attempts": 9, "dead_age": 1, "dead_count": 1}'
"""What the constructor of another process names."""

SOON = Backoff(base=0, cap=0)


def dispatching(url: str, name: str, options: str = OTHERS) -> Worker:
    """A process that dispatches, with an engine of these options."""
    return Worker("tests.support.dispatching", url, name, 2, options)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "settings count" in record.getMessage()]


def test_a_constructor_names_the_settings_of_a_new_engine(
    engines: Engines, url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    named = EngineSettings(max_attempts=2, dead_age=3600, dead_count=10)
    first = engines.opened(url, name=name, shards=2, max_attempts=2, dead_age=dt.timedelta(hours=1), dead_count=10)
    assert first.stats().settings == named
    with caplog.at_level(logging.WARNING, logger="shardq"):
        assert engines.opened(url, name=name, shards=2).stats().settings == named
        assert engines.opened(url, name=name, shards=2, max_attempts=2, dead_age=3600.0).stats().settings == named
        assert told(caplog) == []
        other = engines.opened(url, name=name, shards=2, max_attempts=25, dead_age=3600, dead_count=10**9)
        assert other.stats().settings == named
    (line,) = told(caplog)
    assert line == (
        f"{name!r} has max_attempts=2, dead_count=10, not max_attempts=25, dead_count=1000000000 as asked for: "
        "the stored settings count, and configure() changes them for all"
    )


def test_an_engine_that_is_named_nothing_has_the_defaults(engine: Engine) -> None:
    assert engine.stats().settings == EngineSettings(max_attempts=25, dead_age=30 * 86_400, dead_count=100_000)


def deliveries_of_a_task(consumer: Consumer, engine: Engine, id: str) -> int:
    """Lets the lease of a task run out until it is dead. Returns how often it was given out."""
    given: list[Delivery] = []

    def is_dead() -> bool:
        given.extend(consumer.claim(1, wait=0.1))
        return state_of(engine, id) == "dead"

    wait_until(is_dead, "it is dead", timeout=60)
    assert {delivery.id for delivery in given} == {id}
    return len(given)


@pytest.mark.slow
def test_leases_that_run_out_count_by_the_engine_whoever_dispatches(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2, max_attempts=2)
    with dispatching(url, name) as process:
        process.said()
        other = engines.opened(url, name=name, max_attempts=7)
        consumer = other.consumer(lease=0.2)
        assert deliveries_of_a_task(consumer, engine, engine.push("x")) == 2
        # by whoever configures, while everything runs
        other.configure(max_attempts=1)
        assert deliveries_of_a_task(consumer, engine, engine.push("x")) == 1
        engine.configure(max_attempts=3)
        assert deliveries_of_a_task(consumer, engine, engine.push("x")) == 3
        assert deliveries_of_a_task(consumer, engine, engine.push("x", max_attempts=1)) == 1


def test_failures_count_by_the_engine_also_after_it_was_configured(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2)
    engine.start()
    # it never waits, so nothing but the answer of a shard tells it of a change
    consumer = engines.opened(url, name=name, max_attempts=25).consumer()
    engine.push("x")
    (delivery,) = claim(consumer, 1)
    engine.configure(max_attempts=1)
    consumer.retry(delivery, reason="the only attempt")
    task = engine.get(delivery.id)
    assert task is not None
    assert (task.state, task.reason, task.failures) == ("dead", "the only attempt", 1)
    engine.configure(max_attempts=2)
    engine.push("y")
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"), consumer.settling(claim(consumer, 1), delay=0):
            raise ValueError("wrong")
    assert counted(engine).dead == 2


def test_a_task_comes_before_its_handler_and_that_before_the_engine(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2, max_attempts=1)
    engine.start()
    worker = engine.worker(backoff=SOON)

    def fail(delivery: Delivery) -> None:
        raise ValueError(delivery.payload)

    worker.on("own", max_attempts=2)(fail)
    worker.on("")(fail)

    def failures(id: str) -> int:
        wait_until(lambda: state_of(engine, id) == "dead", "it is dead")
        task = engine.get(id)
        assert task is not None
        return task.failures

    with engines.working(worker):
        assert failures(engine.push("x", topic="own", max_attempts=3)) == 3
        assert failures(engine.push("x", topic="own")) == 2
        assert failures(engine.push("x")) == 1
        engine.configure(max_attempts=4)
        assert failures(engine.push("x")) == 4
        assert failures(engine.push("x", topic="own")) == 2


def test_dead_tasks_are_kept_by_the_settings_of_the_engine(
    engines: Engines, url: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shardq.core.dispatcher.poller.TRIM_S", 0.05)
    engine = engines.opened(url, name=name, shards=2, dead_count=10**9)
    other = engines.opened(url, name=name, dead_age=0.001, dead_count=5)
    other.start()
    engine.push_many([Task(n) for n in range(100)])
    consumer = engine.consumer()
    consumer.bury(claim(consumer, 100), "of no use")

    def left_after_steps() -> int:
        engine.push_many([Task("x", topic="other") for _ in range(4)])  # something due: the pollers step
        return counted(engine).dead

    before = counted(engine).topics["other"].dispatched if "other" in counted(engine).topics else 0

    def stepped() -> bool:
        assert left_after_steps() == 100
        return counted(engine).topics["other"].dispatched > before + 200

    wait_until(stepped, "the pollers have looked at dead tasks many times", timeout=60)
    engine.configure(dead_count=10)
    wait_until(lambda: left_after_steps() == 10, "five are left in each shard", timeout=60)
    engine.configure(dead_age=0.001)
    wait_until(lambda: left_after_steps() == 0, "all are too old", timeout=60)


def test_configure_and_resize_do_not_undo_each_other(engines: Engines, url: str, name: str) -> None:
    engine, other = engines.opened(url, name=name, shards=1), engines.opened(url, name=name)
    engine.start()
    engine.configure(max_attempts=7)
    done = threading.Event()
    counts: list[int] = []

    def configure() -> None:
        # at a pace that leaves calls between two changes
        while not done.wait(0.05):
            counts.append(len(counts) + 1)
            other.configure(dead_count=counts[-1])

    thread = threading.Thread(target=configure)
    thread.start()
    try:
        for shards in (3, 2, 4):
            assert engines.done(engine.resize(shards).wait(60))
    finally:
        done.set()
        thread.join(60)
    engine.pause("mail")
    for each in (engine, other, engines.opened(url, name=name)):
        assert each.stats().settings == EngineSettings(max_attempts=7, dead_count=counts[-1])
        assert (each.topology.shards, each.topology.paused) == (4, frozenset({"mail"}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "configure needs a setting to change: give max_attempts=, dead_age=, dead_count=, done_age=, "),
        ({"max_attempts": 0}, "max_attempts can't be 0; give an int from 1"),
        ({"max_attempts": True}, "max_attempts can't be True"),
        ({"max_attempts": 2.0}, "max_attempts can't be 2.0"),
        ({"dead_age": 0}, "dead_age can't be 0; give more than 0"),
        ({"dead_age": "1d"}, "dead_age can't be '1d'"),
        ({"dead_age": float("nan")}, "dead_age can't be nan"),
        ({"dead_count": -1}, "dead_count=-1 is not possible; give an int from 0 to 1,000,000,000"),
        ({"dead_count": 1.0}, "dead_count=1.0 is not possible"),
        ({"max_attempts": 3, "dead_count": 10**9 + 1}, "dead_count=1000000001 is not possible"),
    ],
)
def test_an_impossible_setting(engines: Engines, engine: Engine, options: dict[str, Any], text: str) -> None:
    before = engine.stats().settings
    with pytest.raises(InvalidOption) as caught:
        engine.configure(**options)
    assert text in str(caught.value)
    if options:
        with pytest.raises(InvalidOption) as caught:
            engines.make("redis://127.0.0.1:1", **options)
        assert text in str(caught.value)
    assert engine.stats().settings == before
