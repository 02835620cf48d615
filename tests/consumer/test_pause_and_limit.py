"""Pauses and limits of topics hold for the whole fleet, whichever process sets them and whichever claims."""

from __future__ import annotations

import threading
import time
from bisect import bisect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from shardq import Consumer, Engine, LeaseLost, ServerFault, Task
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.errors import InvalidTopic
from tests.support.engines import SHARDS
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, ready_of
from tests.support.traffic import waiting
from tests.support.waiting import wait_until


def ready(engine: Engine, topic: str, count: int) -> None:
    engine.push_many([Task(n, topic=topic) for n in range(count)])
    wait_until(lambda: ready_of(engine, topic) == count, f"{count} tasks of {topic} are ready")


def test_a_paused_topic_is_not_given_out(running: Engine, other: Engine) -> None:
    ready(running, "mail", 5)
    other.pause("mail")
    for engine in (running, other):
        assert engine.consumer("mail").claim(5, wait=0.1) == []
        assert engine.topology.paused == {"mail"}
    other.push("x", topic="sms")
    assert claim(running.consumer(["mail", "sms"]), 1)[0].topic == "sms"
    running.push("late", topic="mail")
    wait_until(lambda: ready_of(running, "mail") == 6, "tasks still become ready")
    running.resume("mail")
    assert len(claim(other.consumer("mail"), 6)) == 6


def test_what_runs_goes_on(running: Engine, other: Engine) -> None:
    ready(running, "mail", 2)
    consumer = running.consumer("mail")
    one, two = claim(consumer, 2)
    other.pause("mail")
    consumer.extend(one, 60)
    consumer.ack(one)
    consumer.retry(two)
    wait_until(lambda: ready_of(running, "mail") == 1, "it is ready, and paused")
    assert consumer.claim(1) == []


def test_who_waits_is_told_of_a_pause_and_of_its_end(
    running: Engine, other: Engine, servers: Servers, name: str
) -> None:
    consumer = running.consumer("mail")
    with ThreadPoolExecutor(1) as threads:
        claimed = threads.submit(consumer.claim, 1, wait=20)
        wait_until(lambda: waiting(servers, name, SHARDS, "mail"), "it waits")
        other.pause("mail")
        wait_until(lambda: running.topology.paused == {"mail"}, "the news are here")
        other.push("x", topic="mail")
        wait_until(lambda: ready_of(running, "mail") == 1, "it is ready")
        assert not claimed.done()
        other.resume("mail")
        # below the 8 s after which a waiter looks by itself at the earliest
        (delivery,) = claimed.result(5)
        assert delivery.payload == "x"


def test_pausing_twice(running: Engine) -> None:
    running.pause("mail")
    epoch = running.topology.epoch
    running.pause("mail")
    assert running.topology.epoch == epoch
    for order, topic, paused in (
        (running.pause, "", ["", "mail"]),
        (running.resume, "mail", [""]),
        (running.resume, "mail", [""]),
    ):
        order(topic)
        assert sorted(running.topology.paused) == paused
    with pytest.raises(InvalidTopic):
        running.pause("a b")


@pytest.mark.parametrize("order", ["pause", "limit"])
def test_who_has_not_heard_of_a_change_can_undo_it(running: Engine, other: Engine, order: str) -> None:
    """A process without consumers or pollers hears no news: what it knows is as old as its last call."""
    ready(running, "mail", 2)
    if order == "pause":
        running.pause("mail")
        other.resume("mail")
    else:
        running.limit("mail", concurrency=1)
        other.limit("mail", None)
    assert len(claim(running.consumer("mail"), 2)) == 2


class Crowd:
    """Threads that consume a topic, each task held for a moment; counts how many are held at once.

    The first are held until there are ``full`` of them: on a busy machine moments may not meet.
    """

    def __init__(self, hold_s: float, *, full: int = 0) -> None:
        self.now = self.most = self.done = 0
        self.times: list[float] = []
        self._hold_s = hold_s
        self._full = full
        self._lock = threading.Lock()

    def consume(self, consumer: Consumer, end: Callable[[], bool], max: int = 1) -> None:
        while not end():
            deliveries = consumer.claim(max, wait=0.2)
            with self._lock:
                self.now += len(deliveries)
                self.most = self.now if self.now > self.most else self.most
                self.times += [time.monotonic()] * len(deliveries)
            if deliveries:
                wait_until(lambda: self.most >= self._full, f"{self._full} are held at once", timeout=10)
                time.sleep(self._hold_s)  # the work
            with self._lock:
                # before the ack: with it others may begin
                self.now -= len(deliveries)
                self.done += len(deliveries)
            consumer.ack(deliveries)


@pytest.mark.parametrize("most", [1, 4])
def test_a_limit_of_concurrency_over_two_processes(running: Engine, other: Engine, most: int) -> None:
    running.limit("mail", concurrency=most)
    count = 10 * most
    ready(running, "mail", count)
    crowd = Crowd(hold_s=0.02, full=most)
    ended = threading.Event()
    with ThreadPoolExecutor(8) as threads:
        ends = [
            threads.submit(crowd.consume, engine.consumer("mail"), lambda: ended.is_set() or crowd.done >= count, 3)
            for engine in (running, other)
            for _ in range(4)
        ]
        try:
            for end in ends:
                end.result(30)
        finally:
            ended.set()
    assert crowd.done == count
    assert crowd.most == most


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_limit_of_the_rate(running: Engine, other: Engine) -> None:
    """Never more, and as much in a second in which the machine does not stand still: nothing is saved up meanwhile."""
    rate, least_s, ended = 60, 1.5, threading.Event()
    other.limit("mail", rate=rate)
    ready(running, "mail", 3000)
    crowd = Crowd(hold_s=0.0)
    began = time.monotonic()

    def undisturbed() -> bool:
        times = sorted(crowd.times)
        best = max((bisect(times, at + 1.0) - place for place, at in enumerate(times)), default=0)
        return best >= 0.8 * rate and time.monotonic() >= began + least_s

    with ThreadPoolExecutor(4) as threads:
        ends = [
            threads.submit(crowd.consume, engine.consumer("mail"), ended.is_set, 10)
            for engine in (running, other)
            for _ in range(2)
        ]
        try:
            wait_until(undisturbed, f"a second brings {rate} tasks", timeout=20)
        finally:
            ended.set()
        for end in ends:
            end.result(30)
    # a tenth of a second's worth comes at once
    assert len(crowd.times) <= 1.1 * rate * (max(crowd.times) - began) + rate / 10


@pytest.mark.slow
def test_the_permits_of_a_holder_that_died_lapse_with_its_leases(running: Engine, other: Engine) -> None:
    lease_s = 0.5
    running.limit("mail", concurrency=2)
    ready(running, "mail", 4)
    # before the leases: however long it takes from here, none of them ends earlier
    began = time.monotonic()
    held = claim(running.consumer("mail", lease=lease_s), 2)
    heir = other.consumer("mail")
    claim(heir, 1)
    # the server counts in whole ms; and this is no matter of other leases, which last for 30 s
    assert lease_s - 0.01 <= time.monotonic() - began < 15
    claim(heir, 1)
    assert len(held) == 2


def permits(engine: Engine, servers: Servers) -> dict[str, float]:
    """The permits of mail that are held, to the instants at which they lapse."""
    keys = control_keys(engine.name)
    return {name.decode(): until for name, until in servers.master(keys.slot).zscan_iter(keys.permits("mail"))}


def test_the_permit_of_a_task_that_is_no_longer_held_is_not_extended(running: Engine, servers: Servers) -> None:
    running.limit("mail", concurrency=2)
    for n in range(2):
        running.push(n, topic="mail", id=f"i{n}")
    consumer = running.consumer("mail", lease=600)
    deliveries = claim(consumer, 2)
    # its lease is revoked
    running.push("new", topic="mail", id="i0", on_conflict="replace", delay=FAR_S)
    with pytest.raises(LeaseLost):
        consumer.extend(deliveries, 3000)
    (until,) = permits(running, servers).values()
    assert until > servers.now_ms(control_keys(running.name).slot) + 1_000_000, "and that of the other is"


def test_permits_of_what_was_settled_go_back_though_a_shard_fails(running: Engine, servers: Servers) -> None:
    running.limit("mail", concurrency=100)
    ready(running, "mail", 40)
    consumer = running.consumer("mail", lease=600)
    deliveries = claim(consumer, 40)
    (broken, *_) = {delivery.shard for delivery in deliveries}
    keys = shard_keys(running.name, broken)
    running.stop()
    servers.ask(keys.slot, "SET", keys.why, "what is not ours")
    with pytest.raises(ServerFault, match="WRONGTYPE"):
        consumer.ack(deliveries)
    rest = [delivery for delivery in deliveries if delivery.shard == broken]
    assert 0 < len(rest) < 40
    assert len(permits(running, servers)) == len(rest)
    servers.ask(keys.slot, "DEL", keys.why)
    consumer.ack(rest)
    assert permits(running, servers) == {}


def test_a_limited_topic_does_not_hold_up_the_next(running: Engine) -> None:
    running.limit("high", concurrency=1)
    ready(running, "high", 5)
    ready(running, "low", 5)
    deliveries = claim(running.consumer(["high", "low"]), 6)
    assert sorted(d.topic for d in deliveries) == ["high"] + ["low"] * 5
