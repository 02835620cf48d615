"""The history as dispatchers write it and engines read it: on one server and on a cluster."""

from __future__ import annotations

import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import redis

from shardq import Engine, Task
from shardq.core.calls.request import Command
from shardq.core.drivers.sync import Driver
from shardq.engine.access import EngineAccess
from shardq.features.history import LENGTH, STATE_BYTES, State, recorder, requests
from shardq.features.history.recorder import Recorder
from shardq.features.listing.forecast import Horizon
from tests.support.engines import Engines
from tests.support.servers import Servers
from tests.support.waiting import wait_until


class Clock:
    """The clock of the control slot's master, which the test moves: it begins an hour ago."""

    def __init__(self) -> None:
        self.ms = time.time() // 3600 * 3_600_000 - 3_600_000

    def __call__(self) -> float:
        return self.ms

    def past(self, minutes: int) -> None:
        self.ms += 60_000 * minutes


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def threads(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine that dispatches, and records nothing by itself."""
    monkeypatch.setattr(recorder, "AFTER_MS", 3_600_000)
    with Engine(url, name=name, shards=3) as engine:
        engine.start()
        yield engine


def recorder_of(engine: Engine, clock: Clock, name: str = "a") -> Recorder:
    peers = SimpleNamespace(process=name, members=("a", "b", "c"), clock_ms=clock)
    return Recorder(EngineAccess(engine).open_driver(), EngineAccess(engine).cache, peers)


def dispatch(engine: Engine, count: int) -> None:
    before = engine.stats().dispatched
    engine.push_many([Task(n) for n in range(count)])
    wait_until(lambda: engine.stats().dispatched == before + count, "all were dispatched")


def stored(engine: Engine) -> bytes:
    driver: Driver = EngineAccess(engine).open_driver()
    return driver.call(requests.read(EngineAccess(engine).cache.control, 0, LENGTH + 1))


def recorded(engine: Engine, horizon: Horizon) -> list[int]:
    return [point.dispatched or 0 for point in engine.history(horizon).points if point.minutes]


def test_a_row_a_minute_through_a_restart_and_a_resize(threads: Engine, clock: Clock) -> None:
    first = recorder_of(threads, clock)
    assert first.step(), "the first look, from which all counts"
    assert recorded(threads, "day") == []
    for count in (5, 7):
        dispatch(threads, count)
        clock.past(1)
        assert first.step()
    threads.resize(5)
    dispatch(threads, 20)
    clock.past(1)
    assert recorder_of(threads, clock, "b").step(), "another process goes on where the first one ended"
    assert recorded(threads, "day") == [32]
    assert recorded(threads, "month") == [32]
    [hour] = [point for point in threads.history("day").points if point.minutes]
    assert (hour.minutes, hour.shards, hour.unseen, hour.ready, hour.scheduled) == (3, 5, 0, 32, 0)


def test_a_minute_is_written_once(threads: Engine, clock: Clock) -> None:
    recorders = [recorder_of(threads, clock, name) for name in "abcdef"]
    assert recorders[0].step()
    dispatch(threads, 10)
    clock.past(1)
    written: list[bool] = []
    workers = [threading.Thread(target=lambda each=each: written.append(each.step())) for each in recorders]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert written.count(True) == 1
    assert not recorders[0].step()
    assert recorded(threads, "day") == [10]


def test_a_row_of_many_topics_costs_a_few_scripts(threads: Engine, clock: Clock, servers: Servers) -> None:
    """Shards add up their topics: the dispatcher asked for the length of each ready list, which took it seconds."""
    writer = recorder_of(threads, clock)
    assert writer.step()
    threads.push_many([Task(n, topic=f"topic-{n}") for n in range(2000)])
    wait_until(lambda: threads.stats().ready == 2000, "all were dispatched")
    clock.past(1)
    threads.stop()
    before = [counts(client) for client in servers.masters]
    assert writer.step()
    after = [counts(client) for client in servers.masters]
    spent = sum((sum((last - first).values()) for first, last in zip(before, after, strict=True)), 0)
    assert spent < 150
    [hour] = [point for point in threads.history("day").points if point.minutes]
    assert (hour.dispatched, hour.ready, hour.scheduled) == (2000, 2000, 0)


def counts(client: redis.Redis) -> Counter[str]:
    return Counter({verb: told["calls"] for verb, told in client.info("commandstats").items()})


def test_the_key_has_its_whole_length_from_the_first_row_on(threads: Engine, clock: Clock, url: str) -> None:
    """A string that grows takes twice the room."""
    writer = recorder_of(threads, clock)
    for _ in range(3):
        assert writer.step()
        assert len(stored(threads)) == LENGTH
        clock.past(1)
    keys = EngineAccess(threads).cache.control
    used = EngineAccess(threads).open_driver().call(Command(keys.slot, ("MEMORY", "USAGE", keys.history), int))
    assert used <= 200_000


@pytest.mark.parametrize("step_back_min", [1, 60])
def test_a_clock_that_goes_back(threads: Engine, clock: Clock, step_back_min: int) -> None:
    """By a little, rows wait for it; by more, they go on."""
    writer = recorder_of(threads, clock)
    assert writer.step()
    dispatch(threads, 4)
    clock.past(-step_back_min)
    assert writer.step() == (step_back_min > 1)
    clock.past(2)
    assert writer.step()
    assert sum(recorded(threads, "month")) == 4


def test_a_state_of_another_version_begins_anew(threads: Engine, clock: Clock) -> None:
    writer = recorder_of(threads, clock)
    assert writer.step()
    clock.past(1)
    body = b"\x93a state of tomorrow"
    minute = struct.pack(">I", int(clock() // 60_000) - 2)
    call = requests.write(
        EngineAccess(threads).cache.control,
        0,
        stored(threads)[:4],
        [(0, minute + struct.pack(">I", len(body)) + body)],
        length=LENGTH,
    )
    assert EngineAccess(threads).open_driver().call(call)
    assert writer.step()
    assert State.of(stored(threads)[:STATE_BYTES]) is not None
    assert recorded(threads, "day") == []


def test_what_was_not_recorded_is_unknown(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=1)
    horizons: dict[Horizon, int] = {"hour": 60, "day": 24, "month": 30}
    for horizon, count in horizons.items():
        past = engine.history(horizon)
        assert len(past.points) == count
        assert past.points[-1].start <= past.now < past.points[-1].start + past.step
        assert {(point.minutes, point.dispatched, point.ready) for point in past.points} == {(0, None, None)}
        assert past.points[-1].start == engine.forecast(horizon).buckets[0][0]


@pytest.mark.slow
def test_a_dispatcher_writes_by_itself(engines: Engines, url: str, name: str) -> None:
    engine = engines.opened(url, name=name, shards=2)
    engine.start()
    with Engine(url, name=name) as reader:
        wait_until(lambda: State.of(stored(reader)) is not None, "its first look is stored")
