"""Holds of keys: each ends at its time, and is forgotten then; none lasts longer than it was asked for."""

from __future__ import annotations

import time

import pytest

from shardq import Engine
from shardq.core.calls import consume, lane_control
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.lanes import of_key
from tests.keys.account import TOPIC
from tests.support.servers import Servers
from tests.support.states import claim
from tests.support.waiting import wait_until

AHEAD_S = 50 * 3600
"""A clock that is so far ahead."""


class Stored:
    """The holds of an engine, as they are stored."""

    def __init__(self, engine: Engine, servers: Servers, driver: Driver) -> None:
        self._engine, self._servers, self._driver = engine, servers, driver

    def home(self, key: str) -> ShardKeys:
        return self._shard(self._engine.topology.shard_of(of_key(TOPIC, key)))

    def count(self) -> int:
        shards = map(self._shard, range(self._engine.topology.shards))
        return sum(int(self._servers.ask(keys.slot, "HLEN", keys.holds)) for keys in shards)

    def alarms(self) -> int:
        shards = map(self._shard, range(self._engine.topology.shards))
        return sum(int(self._servers.ask(keys.slot, "ZCARD", keys.alarms)) for keys in shards)

    def hold(self, key: str, seconds: float) -> None:
        """Holds a key for so long, by a clock that is far ahead: it went back then."""
        keys = self.home(key)
        now_us = round((self._servers.now_ms(keys.slot) + AHEAD_S * 1000) * 1000)
        call = lane_control.hold(keys, self._engine.topology.stamp, of_key(TOPIC, key), -round(seconds * 1000))
        self._driver.call(call.at(str(now_us)))

    def look(self, key: str) -> None:
        """What the keeper of lanes does once a minute."""
        self._driver.call(lane_control.lanes(self.home(key), self._engine.topology.stamp, "", count=100))

    def _shard(self, shard: int) -> ShardKeys:
        return shard_keys(self._engine.name, shard, keyed=True)


@pytest.fixture
def stored(running: Engine, servers: Servers, driver: Driver) -> Stored:
    running.limit(TOPIC, per_key=1)
    return Stored(running, servers, driver)


def test_holds_that_are_over_are_forgotten(running: Engine, stored: Stored) -> None:
    """Also those of keys of which nothing waits, or all that may be out is."""
    running.push("leased", topic=TOPIC, key="full")
    running.push("next", topic=TOPIC, key="full")
    consumer = running.consumer(TOPIC, lease=60)
    claim(consumer, 1)
    until = time.time() + 1.0
    running.hold(TOPIC, key="full", until=until)
    for n in range(250):
        running.hold(TOPIC, key=f"k{n}", until=max(until, time.time() + 0.1))
    running.push("late", topic=TOPIC, key="k0", delay=3600)
    wait_until(lambda: stored.count() == 0, "no hold is known any more")
    wait_until(lambda: stored.alarms() == 1, "only what is due in an hour has an alarm")


def test_a_hold_of_a_clock_that_went_back(running: Engine, stored: Stored) -> None:
    stored.hold("k", 0.8)
    began = time.monotonic()
    running.push("a", topic=TOPIC, key="k")
    consumer = running.consumer(TOPIC, lease=60)
    assert consumer.claim(5, wait=0.3) == []
    assert [each.payload for each in claim(consumer, 1)] == ["a"]
    assert 0.7 <= time.monotonic() - began < 15
    wait_until(lambda: stored.count() == 0, "the hold is not known any more")


def test_a_hold_of_a_clock_that_went_back_under_a_task_that_waits(running: Engine, stored: Stored) -> None:
    """Its alarm is far ahead, until the keeper of lanes looks."""
    consumer = running.consumer(TOPIC, lease=60)
    running.push("a", topic=TOPIC, key="k")
    (delivery,) = claim(consumer, 1)
    running.push("b", topic=TOPIC, key="k")
    stored.hold("k", 0.5)
    consumer.ack(delivery)
    stored.look("k")
    assert [each.payload for each in claim(consumer, 1)] == ["b"]


def test_what_is_told_of_such_a_hold(running: Engine, stored: Stored) -> None:
    stored.hold("k", 100)
    running.push("a", topic=TOPIC, key="k")
    (told,) = running.keys(TOPIC)
    assert told.why == "hold"
    assert told.until is not None
    assert told.until.timestamp() <= time.time() + 101


@pytest.mark.parametrize("engines", ["sync"], indirect=True)
def test_a_hold_that_moves_keeps_no_more_than_it_was_asked_for(running: Engine, stored: Stored) -> None:
    for n in range(20):
        stored.hold(f"k{n}", 1.0)
    for n in range(20):
        running.push(n, topic=TOPIC, key=f"k{n}")
    change = running.resize(running.topology.shards * 2)
    # where a hold is over before its key has moved, its task is ready, and does not move
    consumer = running.consumer(TOPIC, lease=60)
    given = claim(consumer, 20)
    assert sorted(each.payload for each in given) == list(range(20))
    consumer.ack(given)
    assert change.wait(60)
    wait_until(lambda: stored.count() == 0, "no hold is known any more")


def test_a_burial_may_hold_its_key(running: Engine, stored: Stored, driver: Driver) -> None:
    """As after the 410 of a webhook. A hold that lasts longer stays, and a task without a key holds nothing."""
    ids = [running.push(n, topic=TOPIC, key="gone") for n in range(2)]
    single = running.push("x", topic=TOPIC)
    consumer = running.consumer(TOPIC)
    held = {each.id: each for each in claim(consumer, 2)}
    assert held.keys() == {ids[0], single}
    for id in (ids[0], single):
        keys = shard_keys(running.name, held[id].shard, keyed=True)
        buried = consume.SettleBury(id, held[id].token, "HTTP 410", 600_000)
        assert driver.call(consume.settle(keys, running.topology.stamp, (), [buried])) == {}
    assert stored.count() == 1
    [key] = running.keys(TOPIC)
    assert (key.key, key.held, key.why) == ("gone", 1, "hold")
    assert key.until is not None
    assert 590 < key.until.timestamp() - time.time() <= 600
    running.hold(TOPIC, key="gone", until=None)
    (last,) = claim(consumer, 1)
    assert last.id == ids[1]
    running.hold(TOPIC, key="gone", until=time.time() + 6000)
    keys = shard_keys(running.name, last.shard, keyed=True)
    driver.call(
        consume.settle(keys, running.topology.stamp, (), [consume.SettleBury(last.id, last.token, "no", 600_000)])
    )
    running.push("next", topic=TOPIC, key="gone")
    wait_until(lambda: [each.why for each in running.keys(TOPIC)] == ["hold"], "it is due, and held")
    [key] = running.keys(TOPIC)
    assert key.until is not None
    assert key.until.timestamp() - time.time() > 5900
