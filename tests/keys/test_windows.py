"""How many of a key are out at once, how fast they come, and what waits meanwhile."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest

from shardq import Consumer, Delivery, Engine, Task
from shardq.core.calls import lane_control
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import key_of, of_key
from tests.keys.account import TOPIC
from tests.support.servers import Servers
from tests.support.states import claim, ready_of
from tests.support.traffic import commands_run
from tests.support.waiting import wait_until

HELD = 1000


def keys_with(engine: Engine, count: int, *, keys: int = 1) -> list[str]:
    return list(engine.push_many([Task(n, topic=TOPIC, key=f"k{n % keys}") for n in range(count)]))


def nothing_more(consumer: Consumer) -> bool:
    return consumer.claim(100, wait=0.1) == []


def test_twenty_at_once(running: Engine) -> None:
    running.limit(TOPIC, per_key=20)
    keys_with(running, 50)
    consumer = running.consumer(TOPIC, lease=60)
    given = claim(consumer, 20)
    assert nothing_more(consumer)
    consumer.ack(given[:7])
    given = given[7:] + claim(consumer, 7)
    assert nothing_more(consumer)
    consumer.ack(given)
    given = claim(consumer, 20)
    assert nothing_more(consumer)
    consumer.ack(given)
    assert sorted(each.payload for each in claim(consumer, 3)) == [47, 48, 49]


def test_a_raised_window_counts_at_once_and_a_lowered_one_drains(running: Engine) -> None:
    running.limit(TOPIC, per_key=1)
    keys_with(running, 60, keys=2)
    consumer = running.consumer(TOPIC, lease=60)
    given = claim(consumer, 2)
    assert nothing_more(consumer)
    running.limit(TOPIC, per_key=10)
    given += claim(consumer, 18)
    assert Counter(key_of(each.id) for each in given) == {"k0": 10, "k1": 10}
    assert nothing_more(consumer)
    running.limit(TOPIC, per_key=3)
    given.sort(key=lambda each: each.payload)
    consumer.ack(given[:14])
    assert nothing_more(consumer)
    consumer.ack(given[14:])
    assert Counter(key_of(each.id) for each in claim(consumer, 6)) == {"k0": 3, "k1": 3}
    assert nothing_more(consumer)


def test_without_a_limit_one_of_a_key(running: Engine) -> None:
    keys_with(running, 4, keys=2)
    consumer = running.consumer(TOPIC, lease=60)
    assert {each.payload for each in claim(consumer, 2)} == {0, 1}
    assert nothing_more(consumer)
    running.limit(TOPIC, per_key=5)
    assert {each.payload for each in claim(consumer, 2)} == {2, 3}


def taken_at(consumer: Consumer, count: int) -> list[float]:
    """When each came, acked at once."""
    at: list[float] = []

    def all_taken() -> bool:
        for delivery in consumer.claim(10, wait=1.0):
            at.append(time.monotonic())
            consumer.ack(delivery)
        return len(at) >= count

    wait_until(all_taken, f"{count} are taken", timeout=100)
    return at


def test_so_many_a_second(running: Engine) -> None:
    running.limit(TOPIC, per_key=20, per_key_rate=20)
    consumer = running.consumer(TOPIC, lease=60)
    keys_with(running, 12)
    at = taken_at(consumer, 12)
    # eleven spaces of 50 ms; the last may catch up by one of them
    assert at[-1] - at[0] >= 0.45


def test_a_rate_whose_clock_went_back(running: Engine, servers: Servers, name: str) -> None:
    """The next turn of a key was noted by a clock that was an hour ahead: the key goes on, at its rate."""
    running.limit(TOPIC, per_key=20, per_key_rate=20)
    lane = of_key(TOPIC, "k0")
    keys = shard_keys(name, running.topology.shard_of(lane), keyed=True)
    servers.ask(keys.slot, "ZADD", keys.rests, (time.time() + 3600) * 1000, lane)
    keys_with(running, 12)
    at = taken_at(running.consumer(TOPIC, lease=60), 12)
    assert at[-1] - at[0] >= 0.45


@pytest.mark.parametrize("now", [None, 50.0])
def test_a_rate_that_is_lifted_or_raised(running: Engine, now: float | None) -> None:
    """The next turn goes by the limit of now: the one before said a hundred seconds."""
    running.limit(TOPIC, per_key=1000, per_key_rate=0.01)
    keys_with(running, 2)
    consumer = running.consumer(TOPIC, lease=60)
    consumer.ack(claim(consumer, 1))
    assert nothing_more(consumer)
    if now is None:
        running.limit(TOPIC, None)
    else:
        running.limit(TOPIC, per_key=1000, per_key_rate=now)
    claim(consumer, 1)  # which waits for half a minute


def test_turns_that_count_no_more_are_forgotten(running: Engine, url: str, servers: Servers, name: str) -> None:
    running.limit(TOPIC, per_key=20, per_key_rate=10)
    keys_with(running, 300, keys=300)
    taken_at(running.consumer(TOPIC, lease=60), 300)
    shards = [shard_keys(name, shard, keyed=True) for shard in range(running.topology.shards)]

    def known() -> int:
        return sum(int(servers.ask(keys.slot, "ZCARD", keys.rests)) for keys in shards)

    assert known() > 0
    time.sleep(0.2)
    driver = Driver(Settings.from_url(url))
    driver.open()
    for each in shards:
        driver.call(lane_control.lanes(each, running.topology.stamp, "", count=10))  # as the keeper of lanes does
    driver.close()
    assert known() == 0


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_half_a_minutes_rate(url: str, name: str) -> None:
    """Of each of ten keys 5/s: never 2 % more, and less only where this machine is busy."""
    with Engine(url, name=name, shards=4) as engine:
        engine.start()
        engine.limit(TOPIC, per_key=20, per_key_rate=5)
        keys_with(engine, 10 * 200, keys=10)
        consumer, counts = engine.consumer(TOPIC, lease=60), Counter[str | None]()
        first, began = claim(consumer, 10), time.monotonic()
        consumer.ack(first)
        while time.monotonic() - began < 30:
            if deliveries := consumer.claim(100, wait=0.05):
                took = time.monotonic() - began
                counts.update(key_of(each.id) for each in deliveries)
                consumer.ack(deliveries)
    assert len(counts) == 10
    for key, count in counts.items():
        assert 0.9 <= count / took / 5 <= 1.02, (key, count, took)


def test_a_key_on_hold(running: Engine) -> None:
    running.limit(TOPIC, per_key=2)
    keys_with(running, 12, keys=2)
    wait_until(lambda: ready_of(running, TOPIC) == 4, "two of each are ready")
    running.hold(TOPIC, key="k0", until=time.time() + 600)
    consumer = running.consumer(TOPIC, lease=60)
    # what of it was ready goes back to the front
    given = claim(consumer, 2)
    assert [each.payload for each in given] == [1, 3]
    assert nothing_more(consumer)
    consumer.ack(given)
    assert [each.payload for each in claim(consumer, 2)] == [5, 7]
    running.hold(TOPIC, key="k0", until=None)
    assert sorted(each.payload for each in claim(consumer, 2)) == [0, 2]


def test_a_hold_ends_at_its_time(running: Engine) -> None:
    running.hold(TOPIC, key="k0", until=time.time() + 0.6)
    began = time.monotonic()
    keys_with(running, 1)
    consumer = running.consumer(TOPIC, lease=60)
    claim(consumer, 1)
    assert time.monotonic() - began >= 0.5


def test_what_is_held_is_looked_at_once(running: Engine, servers: Servers) -> None:
    """A thousand wait behind ten: nobody asks for them until one of those is done, and then for the next alone."""
    running.limit(TOPIC, per_key=1)
    consumer = running.consumer(TOPIC, lease=60)
    keys_with(running, HELD + 10, keys=10)
    given = claim(consumer, 10)
    # the keeper of lanes has been round
    wait_until(lambda: executed(servers, 1.0) < 150, "nothing happens but what does in an idle engine", timeout=15)
    before = commands_run(servers)
    for _ in range(5):
        consumer.ack(given)
        given = claim(consumer, 10)
    # some 50 for each that is done; with a look at each that waits there would be a thousand for each
    assert commands_run(servers) - before < 50 * 200


def executed(servers: Servers, seconds: float) -> int:
    before = commands_run(servers)
    time.sleep(seconds)
    return commands_run(servers) - before


def test_ten_keys_on_hold_hold_up_no_other(running: Engine) -> None:
    running.limit(TOPIC, per_key=1)
    for n in range(10):
        running.hold(TOPIC, key=f"k{n}", until=time.time() + 600)
    keys_with(running, 1000, keys=20)
    consumer, given = running.consumer(TOPIC, lease=60), list[Delivery]()

    def all_of_the_others() -> bool:
        given.extend(deliveries := consumer.claim(100, wait=0.1))
        consumer.ack(deliveries)
        return len(given) == 500

    wait_until(all_of_the_others, "the tasks of ten keys are given")
    assert {int(str(key_of(each.id))[1:]) for each in given} == set(range(10, 20))
    of_key: dict[str, list[int]] = {}
    for each in given:
        of_key.setdefault(str(key_of(each.id)), []).append(each.payload)
    assert all(one < other for payloads in of_key.values() for one, other in pairwise(payloads))


def test_an_entry_of_no_task_holds_up_nothing(running: Engine, servers: Servers, name: str) -> None:
    """What another program has written among the tasks that wait is dropped."""
    running.limit(TOPIC, per_key=1)
    lane = of_key(TOPIC, "k0")
    keys = shard_keys(name, running.topology.shard_of(lane), keyed=True)
    servers.ask(keys.slot, "ZADD", keys.keys, 0, f"{lane}-{0:014}/stray", 0, f"{lane}{1:015}/stray")
    keys_with(running, 40, keys=20)
    consumer = running.consumer(TOPIC, lease=60)
    given = claim(consumer, 20)
    consumer.ack(given)
    assert sorted(each.payload for each in given + claim(consumer, 20)) == list(range(40))
