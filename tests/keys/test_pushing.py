"""Pushes with keys of every kind, and the first ones of an engine while others go on."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from cluster.server import Server
from shardq import AsyncEngine, Engine, Task
from shardq.core.calls.consume import SettleAck, settle
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.lanes import key_of
from tests.keys.account import TOPIC
from tests.support.engines import Engines
from tests.support.servers import Servers, keys_of
from tests.support.states import claim
from tests.support.traffic import commands_run
from tests.support.waiting import wait_until

SHARDS = 4


def tasks(count: int, keys: int, *, own: bool = False) -> list[Task]:
    """Keyed ones and others, in turn; ``own``: with ids of their own."""
    return [
        Task(n, topic=TOPIC, key=f"k{n // 2 % keys}" if n % 2 else None, id=f"id-{n:04}" if own else None)
        for n in range(count)
    ]


def assert_each_key_in_one_shard(servers: Servers, name: str, ids: list[str]) -> None:
    shards, found = defaultdict[str, set[int]](set), set[str]()
    for keys in keys_of(name, SHARDS):
        for id in map(bytes.decode, servers.ask(keys.slot, "HKEYS", keys.task)):
            found.add(id)
            if (key := key_of(id)) is not None:
                shards[key].add(keys.shard)
    assert found == set(ids)
    assert {len(places) for places in shards.values()} == {1}
    assert len(set.union(*shards.values())) > 1


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("way", ["push", "push_many", "push_iter"])
def test_a_key_is_in_one_shard_and_in_order(engine: Engine, servers: Servers, name: str, way: str, own: bool) -> None:
    made = tasks(240, 12, own=own)
    match way:
        case "push":
            ids = [engine.push(each.payload, topic=each.topic, key=each.key, id=each.id) for each in made]
        case "push_many":
            ids = engine.push_many(made)
        case _:
            ids = list(itertools.chain.from_iterable(engine.push_iter(iter(made))))
    assert [key_of(id) for id in ids] == [each.key for each in made]
    assert_each_key_in_one_shard(servers, name, list(ids))
    engine.start()
    consumer, came = engine.consumer(TOPIC, lease=60), defaultdict[str | None, list[int]](list)
    for _ in made:
        (delivery,) = claim(consumer, 1)
        came[key_of(delivery.id)].append(delivery.payload)
        consumer.ack(delivery)
    assert all(payloads == sorted(payloads) for key, payloads in came.items() if key is not None)


@pytest.mark.parametrize("own", [False, True])
def test_pushes_of_an_event_loop_that_are_gathered(url: str, servers: Servers, name: str, own: bool) -> None:
    """The first key of the engine is among them."""
    made = tasks(300, 12, own=own)

    async def pushed() -> list[str]:
        async with AsyncEngine(url, name=name, shards=SHARDS) as engine:
            plain = await asyncio.gather(*(engine.push("plain") for _ in range(100)))
            pushes = [engine.push(each.payload, topic=each.topic, key=each.key, id=each.id) for each in made]
            return [*plain, *await asyncio.gather(*pushes)]

    ids = asyncio.run(pushed())
    assert len(set(ids)) == 400
    assert_each_key_in_one_shard(servers, name, ids)


def test_a_key_is_pushed_once(running: Engine) -> None:
    """An id is its key's own: the same one of another key is another task."""
    first = running.push("a", topic=TOPIC, key="k1", id="order")
    other = running.push("b", topic=TOPIC, key="k2", id="order")
    again = running.push("c", topic=TOPIC, key="k1", id="order")
    assert (first.outcome, other.outcome, again.outcome) == ("pushed", "pushed", "kept")
    assert (first, again) == (f"{TOPIC}/k1/order",) * 2
    assert running.cancel(f"{TOPIC}/k2/order")
    assert [each.payload for each in claim(running.consumer(TOPIC), 1)] == ["a"]


def test_a_task_without_a_key_costs_no_more_beside_keys(engine: Engine, driver: Driver, servers: Servers) -> None:
    """No look at lanes is made for pushes and settlements of none with a key."""
    acks = [SettleAck(id, "no token", "") for id in ("plain/x", "x")]

    def cost() -> int:
        before = commands_run(servers)
        engine.push("made", topic="plain", delay=60)
        engine.push("own", topic="plain", id="own", delay=60, on_conflict="replace")
        keys = shard_keys(engine.name, 0, keyed=engine.topology.is_keyed)
        assert driver.call(settle(keys, engine.topology.stamp, acks)) == {"plain/x": "lost", "x": "lost"}
        return commands_run(servers) - before

    # the least of some: a connection that is opened says more
    without = min(cost() for _ in range(9))
    engine.push("k", topic="other", key="k")
    assert min(cost() for _ in range(9)) == without


def test_keys_of_the_default_topic(running: Engine) -> None:
    ids = [running.push(n, key="k") for n in range(3)]
    assert all(id.startswith("/k/") for id in ids)
    consumer = running.consumer(lease=60)
    for n, id in enumerate(ids):
        (delivery,) = claim(consumer, 1)
        assert (delivery.payload, delivery.id, delivery.topic) == (n, id, "")
        consumer.ack(delivery)


def test_the_first_key_meets_others_under_load(url: str, name: str) -> None:
    """Four engines push without keys and take; then each begins with keys at the same time."""
    end, ready = threading.Event(), threading.Barrier(4)
    done = Counter[str]()

    def push(engine: Engine, number: int) -> list[str]:
        ids: list[str] = []
        for round in range(12):
            if round == 6:
                ready.wait(30)
            key = None if round < 6 else f"k{number}"
            ids.append(engine.push(round, topic=TOPIC, key=key))
            ids += engine.push_many([Task(round, topic=TOPIC, key=key), Task(round, topic="other", delay=0.01)])
            ids += itertools.chain.from_iterable(engine.push_iter(Task(round, topic=TOPIC, key=key) for _ in range(3)))
        return ids

    def take(engine: Engine) -> list[str]:
        consumer, ids = engine.consumer([TOPIC, "other"], lease=60), list[str]()
        while not end.is_set():
            deliveries = consumer.claim(20, wait=0.1)
            consumer.ack(deliveries)
            ids += [each.id for each in deliveries]
            done.update(each.id for each in deliveries)
        return ids

    with ExitStack() as stack:
        engines = [stack.enter_context(Engine(url, name=name, shards=SHARDS)) for _ in range(4)]
        threads = stack.enter_context(ThreadPoolExecutor(6))
        stack.callback(end.set)
        for engine in engines[:2]:
            engine.start()
        takers = [threads.submit(take, engine) for engine in engines[1:3]]
        pushes = [threads.submit(push, engine, number) for number, engine in enumerate(engines)]
        ids = [id for each in pushes for id in each.result(60)]
        wait_until(lambda: len(done) == len(ids), "all are taken")
        end.set()
        taken = [id for each in takers for id in each.result(30)]
    assert Counter(taken) == Counter(ids)


@pytest.mark.parametrize("url", ["single", "cluster"], indirect=True)
def test_keys_are_known_although_a_server_has_lost_the_change_that_began_with_them(
    engines: Engines, url: str, name: str, servers: Servers
) -> None:
    control = control_keys(name)
    first = engines.opened(url, name=name, shards=2)
    first.push("plain", topic="w")
    engine = engines.opened(url, name=name)
    engine.stats()
    dump = servers.ask(control.slot, "DUMP", control.topology)
    ids = first.push_many([Task(n, topic="w", key=f"k{n}") for n in range(6)])
    first.close()
    servers.ask(control.slot, "RESTORE", control.topology, 0, dump, "REPLACE")
    engine.pause("other")  # takes the epoch of the lost change
    engine.start()
    assert sorted(each.id for each in claim(engine.consumer("w"), 7) if each.key) == sorted(ids)
    assert engine.topology.is_keyed


@pytest.mark.parametrize("own", [False, True])
def test_an_engine_that_is_begun_anew_takes_up_keys_again(
    engines: Engines, own_server: Server, name: str, own: bool
) -> None:
    """Its producer knew that it had keys."""
    producer = engines.opened(own_server.url, name=name, shards=2)
    producer.push("lost", topic="w", key="k")
    own_server.ask("FLUSHALL")
    engines.opened(own_server.url, name=name, shards=2).push("plain", topic="w")
    for n in range(3):
        producer.push(n, topic="w", key="k", id=f"id-{n}" if own else None)
    assert producer.topology.is_keyed
    assert [task.payload for task in producer.tasks("w", key="k")] == [0, 1, 2]
