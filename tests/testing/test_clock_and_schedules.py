"""Schedules under a clock that a test moves: their occurrences come at their instants, as dispatchers push them."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterator

import pytest
import redis

import shardq
from shardq.core.layout.keys import control_keys
from shardq.testing import AsyncClock, Clock, drain

NOON = dt.datetime(2030, 6, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def clock(url: str) -> Iterator[Clock]:
    with Clock(url, start=NOON) as clock:
        yield clock


@pytest.fixture
def engine(clock: Clock) -> shardq.Engine:
    return clock.adopt(shardq.Engine(shards=3))


class Seen:
    """A worker that notes what it handled and when, in hours from the beginning."""

    def __init__(self, clock: Clock, engine: shardq.Engine) -> None:
        self.calls: list[tuple[object, float]] = []
        self.worker = engine.worker()
        self._clock = clock
        self.worker.on("")(self.note)

    def note(self, delivery: shardq.Delivery) -> None:
        self.calls.append((delivery.payload, self.hours))

    @property
    def hours(self) -> float:
        return (self._clock.now() - NOON).total_seconds() / 3600


def test_occurrences_of_a_day_are_handled_at_their_instants(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine)
    clock.bind(seen.worker)
    engine.every("nightly", cron="0 3 * * *", tz="Europe/Berlin", payload="nightly")
    engine.every("often", interval=6 * 3600, payload="often")
    engine.push("between", delay=10 * 3600)
    clock.advance(days=1)
    assert seen.calls == [("often", 6), ("between", 10), ("often", 12), ("nightly", 13), ("often", 18), ("often", 24)]
    clock.advance(days=29)
    assert len(seen.calls) == 30 * 5 + 1


def test_without_a_worker_they_wait_in_order(clock: Clock) -> None:
    engine = clock.adopt(shardq.Engine(shards=1))
    engine.every("quick", interval=0.5, payload="quick", topic="quick")
    engine.every("slow", interval=60, payload="slow")
    clock.advance(minutes=5)
    assert [delivery.payload for delivery in drain(engine, topic="")] == ["slow"] * 5
    ids = [delivery.id for delivery in drain(engine, topic="quick")]
    instants = [dt.datetime.fromisoformat(id.rpartition("@")[2]) for id in ids]
    assert instants == [NOON + n * dt.timedelta(seconds=0.5) for n in range(1, 601)]
    assert clock.now() == NOON + dt.timedelta(minutes=5)


def test_a_run_that_nobody_begins_in_time_expires_with_catch_up_none(clock: Clock, engine: shardq.Engine) -> None:
    for catch_up in ("none", "one"):
        engine.every(catch_up, interval=3600, payload=catch_up, catch_up=catch_up, topic=catch_up)
    clock.advance(hours=3, minutes=30)
    assert len(drain(engine, topic="one")) == 3, "they were pushed in time"
    assert drain(engine, topic="none") == []


def test_a_handler_may_change_schedules_on_the_way(clock: Clock, engine: shardq.Engine) -> None:
    seen = Seen(clock, engine)

    @seen.worker.on("change")
    def change(delivery: shardq.Delivery) -> None:
        if delivery.payload == "pause":
            engine.schedule("hourly").pause()
        elif delivery.payload == "resume":
            engine.schedule("hourly").resume()
        elif delivery.payload == "declare":
            engine.every("hourly", interval=3600, payload="new")
        else:
            engine.schedule("hourly").remove()

    clock.bind(seen.worker)
    engine.every("hourly", interval=3600, payload="old")
    for hours, what in ((2.5, "pause"), (4.5, "resume"), (5.5, "declare"), (7.5, "remove")):
        engine.push(what, delay=hours * 3600, topic="change")
    clock.advance(days=1)
    assert seen.calls == [("old", 1), ("old", 2), ("old", 5), ("new", 6), ("new", 7)]


@pytest.mark.parametrize("starts", ["worker", "engine"])
def test_recurring_tasks_are_declared_by_whatever_starts(clock: Clock, engine: shardq.Engine, starts: str) -> None:
    seen = list[dt.datetime]()

    @engine.task(every=3600, name="hourly")
    def hourly() -> None:
        seen.append(clock.now())

    if starts == "worker":
        clock.bind(engine.worker())
    else:
        engine.start()
    clock.advance(hours=2)
    if starts == "worker":
        assert seen == [NOON + dt.timedelta(hours=n) for n in (1, 2)]
    assert len(engine.schedules()) == 1
    assert engine.stats().ready == (2 if starts == "engine" else 0)


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_schedule_that_can_not_be_served_is_told_to_the_test(clock: Clock, engine: shardq.Engine) -> None:
    engine.every("broken", interval=3600)
    with redis.Redis.from_url(clock.url) as client:
        client.hset(control_keys(engine.name).schedules, "broken/declared", "{}")
    with pytest.raises(shardq.errors.InvalidOption, match="the schedule 'broken' can't be served"):
        clock.advance(days=1)


@pytest.mark.parametrize("inline", [False, True])
def test_the_clock_for_asyncio_serves_schedules_too(url: str, inline: bool) -> None:
    async def main() -> None:
        async with AsyncClock(url, start=NOON) as clock:
            engine = clock.adopt(shardq.AsyncEngine(shards=2))
            worker, seen = engine.worker(), list[tuple[float, str]]()

            def note(what: str) -> None:
                seen.append(((clock.now() - NOON).total_seconds() / 3600, what))

            @worker.on("")
            async def handle(delivery: shardq.Delivery) -> None:
                note("often")

            @engine.task(every=dt.timedelta(hours=8), topic="named", name="named")
            async def named() -> None:
                note("named")

            clock.bind(worker, inline=inline)
            await engine.every("often", interval=6 * 3600)
            async with asyncio.timeout(60):
                await clock.advance(days=1)
            expected = [(hours, "often") for hours in (6, 12, 18, 24)] + [(hours, "named") for hours in (4, 12, 20)]
            assert sorted(seen) == sorted(expected)
            assert [hours for hours, _ in seen] == [4, 6, 12, 12, 18, 20, 24]

    asyncio.run(main())
