"""health() says where a ready task wakes nobody although somebody waits, and says nothing of it in a rush."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
import redis

from cluster.ports import free_port
from cluster.server import Server
from shardq import Engine, Task
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.errors import EngineClosed
from tests.support.findings import red
from tests.support.servers import aged
from tests.support.states import FAR_S, ready_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

SHARDS = 2

OLD_S = 20


@pytest.fixture
def engine(single: Server, name: str) -> Iterator[Engine]:
    with Engine(single.url, name=name, shards=SHARDS) as engine:
        engine.start()
        yield engine


class Holder:
    """A process that takes one task of a topic, and works on it until the end of the test."""

    def __init__(self, stack: ExitStack, url: str, name: str, topic: str) -> None:
        self._engine = stack.enter_context(Engine(url, name=name))
        self._consumer = self._engine.consumer(topic, lease=FAR_S)
        self.held: list[str] = []
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()
        stack.callback(self._engine.close)

    def _take(self) -> None:
        with suppress(EngineClosed):
            self.held += [delivery.id for delivery in self._consumer.claim(1, wait=60)]


def waiting(server: Server, name: str, topic: str) -> list[int]:
    """The number of processes that are registered in each shard."""
    return [server.ask("ZCARD", shard_keys(name, shard).waiting(topic)) for shard in range(SHARDS)]


def age(engine: Engine, server: Server, topic: str) -> None:
    """Makes the topic's ready tasks look as if they had been seen long ago."""
    aged(engine, topic, OLD_S, ask=lambda slot, *words: server.ask(*words, decode=False))


@pytest.mark.slow
def test_a_process_that_stands_still_is_drawn_in_place_of_one_that_waits(
    engine: Engine, single: Server, name: str
) -> None:
    with ExitStack() as stack:
        frozen = stack.enter_context(Worker("tests.support.waiting_consumers", single.url, name, "1"))
        wait_until(lambda: waiting(single, name, "") == [1, 1], "it waits")
        os.kill(frozen.pid, signal.SIGSTOP)
        holder = Holder(stack, single.url, name, "")
        wait_until(lambda: waiting(single, name, "") == [2, 2], "the other waits, too")
        id = engine.push("x")
        began = time.monotonic()
        wait_until(lambda: "deaf" in red(engine.health()), "it is found", timeout=15)
        (reason,) = (text for text in engine.health().reasons if "wake nobody" in text)
        keys = shard_keys(name, engine.topology.shard_of(id))
        (name_of_waiter,) = single.ask("ZRANGE", keys.waiting(""), 0, -1)
        assert f"shard {keys.shard} wake nobody" in reason
        assert name_of_waiter in reason
        assert time.monotonic() - began > 5
        os.kill(frozen.pid, signal.SIGCONT)
        wait_until(lambda: engine.health().ok, "it goes on, and took it")
        assert not holder.held


def test_all_are_at_work(engine: Engine, single: Server, name: str) -> None:
    """Whoever is drawn has no time, and has another one drawn, until no name is left."""
    with ExitStack() as stack:
        holders = [Holder(stack, single.url, name, "mail") for _ in range(3)]
        wait_until(lambda: waiting(single, name, "mail") == [3, 3], "they wait")
        engine.push_many([Task(n, topic="mail") for n in range(20)])
        wait_until(lambda: all(holder.held for holder in holders), "each works")
        age(engine, single, "mail")
        assert "deaf" not in red(engine.health())


@pytest.mark.parametrize("hold", ["paused", "limited", "forwarded"])
def test_nobody_is_meant_to_be_woken(engine: Engine, single: Server, name: str, hold: str) -> None:
    """Nor soon after that: names are left of those that are at work."""
    with ExitStack() as stack:
        holder = Holder(stack, single.url, name, "mail")
        wait_until(lambda: waiting(single, name, "mail") == [1, 1], "it waits")
        busy = stack.enter_context(Engine(single.url, name=name))
        first = engine.push("x", topic="mail")
        wait_until(lambda: holder.held == [first], "it works")
        left = waiting(single, name, "mail")
        assert sum(left) == 1, "it is registered in the other shard still"
        if hold == "paused":
            busy.pause("mail")
        elif hold == "limited":
            busy.limit("mail", concurrency=1)
        else:
            busy.forward("mail", to=f"http://127.0.0.1:{free_port()}/")
        engine.push_many([Task(n, topic="mail") for n in range(20)])
        wait_until(lambda: ready_of(engine, "mail") >= 20 or hold == "forwarded", "they are ready")
        age(engine, single, "mail")
        single.ask("DEL", control_keys(name).changes)  # as if it had been changed long ago
        assert "deaf" not in red(engine.health())
        if hold == "paused":
            busy.resume("mail")
            assert sum(waiting(single, name, "mail")) == 1, "nobody was drawn"
            age(engine, single, "mail")
            assert "deaf" not in red(engine.health())


def test_those_who_waited_are_gone(engine: Engine, single: Server, name: str) -> None:
    engine.push("x", topic="mail")
    wait_until(lambda: ready_of(engine, "mail") == 1, "it is ready")
    for shard in range(SHARDS):
        single.ask("ZADD", shard_keys(name, shard).waiting("mail"), 1, "gone-1")
    age(engine, single, "mail")
    assert "deaf" not in red(engine.health())


@pytest.mark.slow
def test_one_after_the_other_is_drawn(engine: Engine, single: Server, name: str) -> None:
    """Many that listen, and are at work."""
    engine.push("x", topic="mail")
    wait_until(lambda: ready_of(engine, "mail") == 1, "it is ready")
    keys = shard_keys(name, next(each.shard for each in engine.stats().shards if each.ready))
    with redis.Redis.from_url(single.url) as client, client.pubsub() as pubsub:
        for n in range(20):
            pubsub.ssubscribe(keys.wake(f"busy-{n}"))
            pubsub.get_sharded_message(timeout=10)
            client.zadd(keys.waiting("mail"), {f"busy-{n}": n})
        age(engine, single, "mail")
        over = threading.Event()

        def draw() -> None:
            while not over.wait(0.2):
                single.ask("ZPOPMIN", keys.waiting("mail"))

        thread = threading.Thread(target=draw)
        thread.start()
        kinds = red(engine.health())
        assert client.zcard(keys.waiting("mail")), "some are left"
        over.set()
        thread.join()
        assert "deaf" not in kinds
        assert "deaf" in red(engine.health())
