"""A rate counts when a task is given out: by a claim, or by forwarding. What is ready and not taken is no more than
50 ms of it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import pytest

from shardq import Consumer, Delivery, Engine, Task
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import of_key
from shardq.testing import Clock
from tests.keys.account import TOPIC, by_shard
from tests.support.servers import Servers
from tests.support.states import claim, ready_of, state_of
from tests.support.waiting import wait_until

AWAY_S = 0.7

LEASE_S = 60.0


def pushed(engine: Engine, count: int, **options: Any) -> list[str]:
    return list(engine.push_many([Task(n, topic=TOPIC, key="k", **options) for n in range(count)]))


def taken(
    consumer: Consumer, servers: Servers, name: str, count: int = 10**9, *, within: float = math.inf
) -> list[float]:
    """When each of so many was given out, in seconds from the first one on, by the clock of the server, which counts
    the turns: this process may hear of one as late as it likes. Each is acked at once.
    """
    ended, at_ms = time.monotonic() + 60, list[float]()
    while len(at_ms) < count and (not at_ms or at_ms[-1] - at_ms[0] < within * 1000):
        assert time.monotonic() < ended, f"{len(at_ms)} came in a minute"
        deliveries = consumer.claim(1000, wait=0.5)
        for shard, some in by_shard(deliveries).items():
            keys = shard_keys(name, shard)
            ends_ms = servers.ask(keys.slot, "ZMSCORE", keys.leased, *(each.id for each in some))
            at_ms += [float(each) - LEASE_S * 1000 for each in ends_ms]
        consumer.ack(deliveries)
    at_s = [(each - at_ms[0]) / 1000 for each in sorted(at_ms)]
    return [each for each in at_s if each < within]


def left_of(servers: Servers, engine: Engine, name: str, what: str) -> list[Any]:
    keys = shard_keys(name, engine.topology.shard_of(of_key(TOPIC, "k")), keyed=True)
    return list(servers.ask(keys.slot, "ZRANGE", getattr(keys, what), 0, -1))


def test_workers_were_away(running: Engine, servers: Servers, name: str) -> None:
    running.limit(TOPIC, per_key=20, per_key_rate=5)
    pushed(running, 40)
    wait_until(lambda: ready_of(running, TOPIC) == 1, "one is ready")
    time.sleep(AWAY_S)
    assert ready_of(running, TOPIC) == 1
    at = taken(running.consumer(TOPIC, lease=LEASE_S), servers, name, within=1.0)
    assert len(at) <= 6
    assert len([each for each in at if each < 0.1]) == 1


def test_a_fast_key_whose_workers_were_away(running: Engine, servers: Servers, name: str) -> None:
    running.limit(TOPIC, per_key=1000, per_key_rate=200)
    pushed(running, 400)
    wait_until(lambda: ready_of(running, TOPIC) == 10, "ten are ready")
    time.sleep(0.2)
    assert ready_of(running, TOPIC) == 10
    # those that were ready are turns from now on; 50 ms are made up for
    at = taken(running.consumer(TOPIC, lease=LEASE_S), servers, name, within=1.0)
    assert len(at) <= 210


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_thousand_a_second(url: str, servers: Servers, name: str) -> None:
    """A machine that stands still for longer than 50 ms loses turns, so the best quarter of a second counts."""
    with Engine(url, name=name, shards=1) as engine:
        engine.start()
        engine.limit(TOPIC, per_key=1000, per_key_rate=1000)
        pushed(engine, 8000)
        at = taken(engine.consumer(TOPIC, lease=LEASE_S), servers, name, 8000)
    parts = Counter(int(each * 4) for each in at)
    assert max(parts.values()) >= 0.9 * 250
    seconds = Counter(int(each) for each in at)
    assert max(seconds.values()) <= 1000 + 50 + 50 + 1, "50 ms may be ready at the beginning, and 50 be made up for"


@pytest.mark.parametrize("by", ["cancel", "tag", "purge", "reschedule", "replace", "expiry", "hold"])
def test_a_ready_one_that_nobody_takes_gives_its_turn_back(
    running: Engine, servers: Servers, name: str, by: str
) -> None:
    running.limit(TOPIC, per_key=20, per_key_rate=0.01)
    expires = 1.0 if by == "expiry" else None
    first = str(running.push("a", topic=TOPIC, key="k", id="a", tags=["t"], expires=expires))
    wait_until(lambda: state_of(running, first) == "ready", "the first is ready")
    running.push("b", topic=TOPIC, key="k", id="b", delay=0.01)
    consumer = running.consumer(TOPIC, lease=LEASE_S)
    if by == "cancel":
        assert running.cancel(first)
    elif by == "tag":
        assert running.cancel_all(tag="t").done == 1
    elif by == "purge":
        running.purge(TOPIC)
        running.push("b", topic=TOPIC, key="k", id="b")
    elif by == "reschedule":
        assert running.reschedule(first, delay=600)
    elif by == "replace":
        running.push("c", topic=TOPIC, key="k", id="a", delay=600, on_conflict="replace")
    elif by == "expiry":
        time.sleep(1.1)
    else:
        running.hold(TOPIC, key="k", until=time.time() + 600)
        assert consumer.claim(5, wait=0.1) == []
        running.hold(TOPIC, key="k", until=None)
    (given,) = claim(consumer, 1)  # which gives up before the next turn, after 100 s
    assert given.payload == ("a" if by == "hold" else "b")
    running.push("d", topic=TOPIC, key="k")
    assert consumer.claim(5, wait=0.3) == [], "that was a turn"
    assert left_of(servers, running, name, "placed") == [given.id.encode()]


def test_what_is_forwarded_counts(running: Engine, servers: Servers, name: str) -> None:
    to = f"{{{name}}}-list"
    running.limit(TOPIC, per_key=20, per_key_rate=20)
    pushed(running, 12)
    time.sleep(0.5)
    began = time.monotonic()
    running.forward(TOPIC, to=to)

    def forwarded() -> int:
        return sum(each.llen(key) for each in servers.masters for key in each.scan_iter(match=f"*{name}*-list*"))

    wait_until(lambda: forwarded() == 12, "all are forwarded")
    assert time.monotonic() - began >= 0.45
    assert left_of(servers, running, name, "placed") == []


@pytest.mark.parametrize("before", [None, 1000.0])
def test_a_rate_that_is_set_or_lowered(running: Engine, servers: Servers, name: str, before: float | None) -> None:
    """It counts for what is ready, too."""
    running.limit(TOPIC, per_key=20, per_key_rate=before)
    pushed(running, 40)
    wait_until(lambda: ready_of(running, TOPIC) == 20, "twenty are ready")
    running.limit(TOPIC, per_key=20, per_key_rate=5)
    assert len(taken(running.consumer(TOPIC, lease=LEASE_S), servers, name, within=1.0)) <= 6


def test_a_rate_that_is_lifted_leaves_nothing(running: Engine, servers: Servers, name: str) -> None:
    running.limit(TOPIC, per_key=20, per_key_rate=5)
    pushed(running, 3)
    wait_until(lambda: ready_of(running, TOPIC) == 1, "one is ready")
    running.limit(TOPIC, per_key=20)
    consumer = running.consumer(TOPIC, lease=LEASE_S)
    consumer.ack(claim(consumer, 3))
    assert left_of(servers, running, name, "placed") == []
    running.limit(TOPIC, per_key=20, per_key_rate=1000)
    pushed(running, 3)
    consumer.ack(claim(consumer, 3))
    assert left_of(servers, running, name, "placed") == []


def test_what_a_dead_worker_had_comes_at_the_rate(running: Engine, servers: Servers, name: str) -> None:
    running.limit(TOPIC, per_key=20, per_key_rate=20)
    pushed(running, 10)
    dying = running.consumer(TOPIC, lease=2)
    given = claim(dying, 10)
    dying.extend(given, 0.5)
    again = taken(running.consumer(TOPIC, lease=LEASE_S), servers, name, 10)
    assert again[-1] >= 9 * 0.05 - 0.05, "50 ms may be made up for"
    assert state_of(running, given[0].id) == "gone"


def test_the_virtual_clock(url: str) -> None:
    """Twelve tasks at 5/s, whose worker comes after a minute."""
    with Clock(url) as clock:
        engine = clock.adopt(Engine(url, name="rates"), shards=1)
        engine.limit(TOPIC, per_key=20, per_key_rate=5)
        pushed(engine, 12)
        clock.advance(minutes=1)
        at: list[float] = []
        worker = engine.worker()

        @worker.on(TOPIC)
        def noted(delivery: Delivery) -> None:
            at.append(clock.now().timestamp())

        clock.bind(worker)
        clock.advance(seconds=5)
    assert [round(each - at[0], 3) for each in at] == [round(0.2 * n, 3) for n in range(12)]
