"""Keys of which a task runs at the shard that they leave, while the number of shards changes: nothing else of them is
given out before it has ended, wherever it came from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shardq import Consumer, Delivery, Engine, Receipt, Task
from shardq.core.calls.lane_control import Closed, open_lanes
from shardq.core.calls.request import Command
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.lanes import key_of, of_key
from shardq.core.layout.topology import Topology
from shardq.core.model.record import JSON, encode_record
from shardq.core.operation import Operation, Step, run
from shardq.core.resharding.lane_keeper import move_closed, open_arrived
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.moving_lanes import Lanes
from shardq.core.resharding.resizing import forget_priors
from shardq.engine.access import EngineAccess
from shardq.engine.doctor import Mended, find_orphans
from shardq.errors import ChangeUnderWay
from tests.keys.account import TOPIC
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S, claim
from tests.support.waiting import wait_until

BEFORE, AFTER = 4, 16


class Moving:
    """A key that has another shard from now on. Its task ``dead`` is dead, ``first`` is leased, and ``held`` waits."""

    def __init__(self, engine: Engine, servers: Servers) -> None:
        self.engine, self.servers = engine, servers
        self.taker: Consumer = engine.consumer(TOPIC, lease=60)
        engine.limit(TOPIC, per_key=1)
        self.key = self.moving_key()
        self.push("dead")
        self.taker.bury(claim(self.taker, 1), "of no use")
        self.push("first")
        self.running: list[Delivery] = claim(self.taker, 1)
        self.push("held")
        self.change = engine.resize(AFTER)
        self.home = keys_of(engine.name, AFTER)[engine.topology.shard_of(self.id("x"))]

    @staticmethod
    def moving_key() -> str:
        before, after = (Topology(epoch=1, shards=number, is_keyed=True) for number in (BEFORE, AFTER))
        lanes = ((str(n), of_key(TOPIC, str(n))) for n in range(1000))
        return next(key for key, lane in lanes if before.shard_of(lane) != after.shard_of(lane))

    def id(self, unique: str) -> str:
        return f"{TOPIC}/{self.key}/{unique}"

    def push(self, unique: str, **options: Any) -> Receipt:
        return self.engine.push(unique, topic=TOPIC, key=self.key, id=unique, **options)

    def arrived(self, unique: str) -> bool:
        return bool(self.servers.ask(self.home.slot, "HEXISTS", self.home.task, self.id(unique)))

    def nothing_is_given(self) -> None:
        assert self.taker.claim(5, wait=0.4) == []

    def given(self, *payloads: str) -> None:
        """These follow, one after the other, once the first is done."""
        self.taker.ack(self.running)
        found = []
        for _ in payloads:
            (delivery,) = claim(self.taker, 1)
            assert self.taker.claim(5, wait=0.02) == []
            found.append(delivery.payload)
            self.taker.ack(delivery)
        assert self.taker.claim(5, wait=0.05) == []
        assert sorted(found) == sorted(payloads)
        assert self.change.wait(20), self.change.progress()


@pytest.fixture
def running(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=BEFORE, timeout=10.0) as engine:
        engine.start()
        yield engine


@pytest.fixture
def moving(running: Engine, servers: Servers) -> Moving:
    return Moving(running, servers)


def test_what_is_pushed(moving: Moving) -> None:
    moving.push("new")
    moving.nothing_is_given()
    moving.given("held", "new")


def test_what_is_requeued(moving: Moving) -> None:
    wait_until(lambda: moving.arrived("dead"), "the dead task is at its new shard")
    assert moving.engine.requeue(moving.id("dead"))
    moving.nothing_is_given()
    moving.given("held", "dead")


def test_what_is_replaced(moving: Moving) -> None:
    for unique in ("dead", "held"):
        assert moving.push(unique, on_conflict="replace").outcome == "replaced"
    moving.nothing_is_given()
    moving.given("held", "dead")


def test_what_runs_is_replaced(moving: Moving) -> None:
    """The new task waits where the lease was, and moves once its holder was told."""
    assert moving.push("first", on_conflict="replace").outcome == "replaced"
    moving.nothing_is_given()
    moving.given("held", "first")


def test_what_is_rescheduled(moving: Moving) -> None:
    assert moving.engine.reschedule(moving.id("held"), delay=0)
    moving.push("far", delay=FAR_S)
    assert moving.engine.reschedule(moving.id("far"), delay=0)
    moving.nothing_is_given()
    moving.given("held", "far")


def test_what_is_let_go(moving: Moving) -> None:
    moving.engine.hold(TOPIC, key=moving.key, until=time.time() + 600)
    moving.push("new")
    moving.engine.hold(TOPIC, key=moving.key, until=None)
    moving.nothing_is_given()
    moving.given("held", "new")


def test_what_a_hold_keeps(moving: Moving) -> None:
    """A hold moves along, and ends where the key is then."""
    moving.engine.hold(TOPIC, key=moving.key, until=time.time() + 600)
    moving.taker.ack(moving.running)
    wait_until(lambda: moving.arrived("held"), "the task is at its new shard")
    assert moving.taker.claim(5, wait=0.5) == []
    moving.engine.hold(TOPIC, key=moving.key, until=None)
    assert [each.payload for each in claim(moving.taker, 1)] == ["held"]


@pytest.mark.parametrize("verb", ["retry", "back"])
def test_what_goes_back_to_the_front(moving: Moving, verb: str) -> None:
    """It is given before the others of its key, and at the new shard."""
    moving.push("new")
    settle: dict[str, Callable[[], object]] = {
        "retry": lambda: moving.taker.retry(moving.running, delay=0.5),
        "back": lambda: moving.taker.snooze(moving.running, 0),
    }
    began = time.monotonic()
    settle[verb]()
    (again,) = claim(moving.taker, 1)
    assert again.payload == "first"
    assert verb == "back" or time.monotonic() - began >= 0.5
    moving.running = [again]
    moving.given("held", "new")


def test_what_lapses(running: Engine, servers: Servers) -> None:
    """A task whose lease lapsed is given again where it was, before the others."""
    moving = Moving(running, servers)
    moving.taker.extend(moving.running, 0.2)
    moving.push("new")
    (again,) = claim(moving.taker, 1)
    assert (again.payload, again.attempt) == ("first", 2)
    moving.running = [again]
    moving.nothing_is_given()
    moving.given("held", "new")


def test_what_is_restored(moving: Moving, servers: Servers, driver: Driver) -> None:
    """A record is at the new shard before anything of its key has come there, and in no list or set."""
    home = moving.home
    moving.engine.stop()
    servers.ask(home.slot, "HDEL", home.gates, of_key(TOPIC, moving.key))
    servers.ask(home.slot, "HSET", home.task, moving.id("lost"), encode_record(JSON, "lost"))
    cache = EngineAccess(moving.engine).cache
    (found,) = run(driver, find_orphans(cache, [cache.keys(home.shard)], everything=True), 5.0)
    assert found.mend is not None
    assert run(driver, found.mend(), 5.0) == Mended(1)
    moving.engine.start()
    moving.nothing_is_given()
    moving.given("held", "lost")


def test_what_is_cancelled_or_purged(moving: Moving) -> None:
    moving.push("new")
    assert moving.engine.cancel(moving.id("held"))
    moving.nothing_is_given()
    moving.given("new")


def test_the_first_key_comes_while_tasks_move(running: Engine) -> None:
    """It waits for no other key, and no second change begins."""
    running.push_many([Task(n, delay=FAR_S) for n in range(600)])
    change = running.resize(AFTER, rate=20)
    ids = running.push_many([Task(n, topic=TOPIC, key=f"k{n % 40}") for n in range(80)])
    ids += running.push_many([Task(n, topic=TOPIC, key=f"k{n % 40}", id=str(n)) for n in range(80, 120)])
    taker = running.consumer(TOPIC, lease=60)
    came = dict[str, list[int]]()
    for _ in range(3):
        given = claim(taker, 40)
        for each in given:
            came.setdefault(str(key_of(each.id)), []).append(each.payload)
        taker.ack(given)
    assert came == {f"k{n}": [n, n + 40, n + 80] for n in range(40)}
    assert not change.done()
    with pytest.raises(ChangeUnderWay):
        running.resize(AFTER + 1)
    running.resize(AFTER)  # the rest as fast as it goes
    assert change.wait(20), change.progress()


def test_a_hold_of_a_key_without_tasks_moves(running: Engine) -> None:
    running.limit(TOPIC, per_key=1)
    key = Moving.moving_key()
    running.hold(TOPIC, key=key, until=time.time() + 600)
    assert running.resize(AFTER).wait(20)
    running.push("a", topic=TOPIC, key=key)
    taker = running.consumer(TOPIC, lease=60)
    assert taker.claim(5, wait=0.5) == []
    running.hold(TOPIC, key=key, until=None)
    assert [each.payload for each in claim(taker, 1)] == ["a"]


def test_a_hold_that_was_lifted_stays_so(running: Engine) -> None:
    """Also where the key was when it was on hold: it comes back there."""
    running.limit(TOPIC, per_key=1)
    key = Moving.moving_key()
    running.hold(TOPIC, key=key, until=time.time() + 600)
    running.push("a", topic=TOPIC, key=key)
    assert running.resize(AFTER).wait(20)
    running.hold(TOPIC, key=key, until=None)
    taker = running.consumer(TOPIC, lease=60)
    taker.ack(claim(taker, 1))
    change = running.resize(BEFORE)
    running.push("b", topic=TOPIC, key=key)
    assert [each.payload for each in claim(taker, 1)] == ["b"]
    assert change.wait(20), change.progress()


def test_a_hold_that_is_lifted_on_the_way(running: Engine, name: str, driver: Driver) -> None:
    """After the keeper has read it where the key was, and before it opens the key at its new shard."""
    running.limit(TOPIC, per_key=1)
    key = Moving.moving_key()
    until = time.time() + 600
    running.hold(TOPIC, key=key, until=until)
    running.stop()
    running.resize(AFTER)
    running.push("a", topic=TOPIC, key=key)
    running.hold(TOPIC, key=key, until=None)
    lane, topology = of_key(TOPIC, key), running.topology
    home = shard_keys(name, topology.shard_of(lane), keyed=True)
    driver.call(open_lanes(home, topology.stamp, [Closed(lane, 0, False, "", f"{until * 1000:.0f}")]))
    running.start()
    assert [each.payload for each in claim(running.consumer(TOPIC), 1)] == ["a"]


def test_a_hold_in_the_last_instant_of_a_change(url: str, name: str, servers: Servers, driver: Driver) -> None:
    """Every shard is swept, and the earlier number not forgotten yet: what is told to the shard that the key has left
    would stay there, and count when the key comes back.
    """
    with Engine(url, name=name, shards=BEFORE) as engine:
        engine.limit(TOPIC, per_key=1)
        key = Moving.moving_key()
        engine.resize(AFTER)
        cache = EngineAccess(engine).cache
        for keys in cache.span():
            assert run(driver, sweep(cache, keys, MoveTokens("test"), MoveRate()), 5.0)
        engine.hold(TOPIC, key=key, until=time.time() + 600)
        assert run(driver, forget_priors(cache), 5.0)
        held = [keys.shard for keys in keys_of(name, AFTER) if servers.ask(keys.slot, "EXISTS", keys.holds)]
        assert held == [engine.topology.shard_of(of_key(TOPIC, key))]
        engine.push("a", topic=TOPIC, key=key)
        engine.start()
        taker = engine.consumer(TOPIC, lease=60)
        assert taker.claim(5, wait=0.5) == []
        engine.hold(TOPIC, key=key, until=None)
        taker.ack(claim(taker, 1))
        assert engine.resize(BEFORE).wait(20)
        engine.push("b", topic=TOPIC, key=key)
        assert [each.payload for each in claim(taker, 1)] == ["b"]


def test_a_hold_that_is_set_while_its_shard_is_swept(running: Engine, servers: Servers, driver: Driver) -> None:
    """A dead task is requeued where it was, so that the hold is told there, too; then the keeper moves the key."""
    running.limit(TOPIC, per_key=1)
    key = Moving.moving_key()
    id = running.push("a", topic=TOPIC, key=key)
    taker = running.consumer(TOPIC, lease=60)
    taker.bury(claim(taker, 1), "of no use")
    running.stop()
    running.resize(AFTER)
    cache, numbers = EngineAccess(running).cache, MoveTokens("test")
    source, target = map(cache.keys, running.topology.homes(id))

    def all_else() -> None:
        running.push("b", topic=TOPIC, key=key, delay=FAR_S)
        assert running.requeue(id, delay=FAR_S)
        running.hold(TOPIC, key=key, until=time.time() + 600)
        known = Lanes(running.topology.since)
        for _ in range(2):
            run(driver, open_arrived(cache, target, known), 5.0)
            run(driver, move_closed(cache, source, numbers, MoveRate(), known), 5.0)
        assert not servers.ask(source.slot, "EXISTS", source.task)

    def meanwhile(operation: Operation[bool]) -> Operation[bool]:
        """Does all else before the sweep goes through what is scheduled."""
        step = next(operation)
        while not (isinstance(step, Command) and step.words[:2] == ("ZRANGE", source.due)):
            step = operation.send((yield step))
        all_else()
        return (yield from _going_on(operation, step))

    assert run(driver, meanwhile(sweep(cache, source, MoveTokens("sweeper"), MoveRate())), 5.0)
    assert not servers.ask(source.slot, "EXISTS", source.holds)
    assert servers.ask(target.slot, "HEXISTS", target.holds, of_key(TOPIC, key))


def _going_on(operation: Operation[bool], step: Step) -> Operation[bool]:
    try:
        while True:
            step = operation.send((yield step))
    except StopIteration as end:
        return bool(end.value)
