"""The look at an idle shard finds whatever a dispatch would find, whether or not a ring told it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from shardq import Engine
from shardq.core.calls import dispatch
from shardq.core.calls.dispatch import Dispatched
from shardq.core.dispatcher.poller import FRESH_S, LOOKS, NodeClock, QuietShard
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.topology import Stamp
from tests.support.servers import Servers
from tests.support.waiting import wait_until

FAR_S = 86_400.0


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=1) as engine:
        yield engine


@pytest.fixture
def keys(name: str) -> ShardKeys:
    return shard_keys(name, 0)


class Looker:
    """A shard's quiet look, as its poller uses it."""

    def __init__(self, driver: Driver, keys: ShardKeys, epoch: Stamp) -> None:
        self.clock = NodeClock()
        self._connection = driver.dedicated(keys.slot)
        self._keys = keys
        self.epoch = epoch
        self.quiet = QuietShard(self._connection, keys, lambda: self.clock)

    def dispatch(self) -> None:
        call = dispatch.dispatch(self._keys, self.epoch, [""], limit=100, max_attempts=5)
        self.quiet.dispatched(self._connection.call(call), self.epoch)

    def look(self, epoch: Stamp | None = None) -> Dispatched | None:
        return self.quiet.look(self.epoch if epoch is None else epoch, timeout=10.0)

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def looker(engine: Engine, url: str, keys: ShardKeys) -> Iterator[Looker]:
    driver = Driver(Settings.from_url(url))
    driver.open()
    looker = Looker(driver, keys, engine.topology.stamp)
    looker.dispatch()
    yield looker
    looker.close()
    driver.close()


def test_an_idle_shard_is_as_it_was(engine: Engine, looker: Looker) -> None:
    found = looker.look()
    assert found is not None
    assert (found.moved, found.next_us) == (0, None)
    engine.push("x", delay=FAR_S)
    looker.dispatch()
    found = looker.look()
    assert found is not None
    assert found.next_us is not None
    assert found.next_us > found.now_us


CHANGES: dict[str, Callable[[Engine], object]] = {
    "a task is due": lambda engine: engine.push("x"),
    "a task is due soon": lambda engine: engine.push("x", delay=5),
    "a task is due earlier than the first": lambda engine: engine.push("x", delay=FAR_S / 2),
    "a dedup window is open": lambda engine: engine.push("x", id="a", dedup=3600, delay=FAR_S * 2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_was_pushed_is_found_without_a_ring(
    engine: Engine, looker: Looker, change: Callable[[Engine], object]
) -> None:
    engine.push("x", delay=FAR_S)
    looker.dispatch()
    assert looker.look() is not None
    change(engine)
    assert looker.look() is None


def test_what_is_due_soon_is_dispatched_to_the_instant(engine: Engine, looker: Looker) -> None:
    engine.push("x", delay=5)
    looker.dispatch()
    looker.close()  # a look that asks anything first would make it late
    del looker.clock
    assert looker.look() is None


def test_a_long_lease_is_found_though_it_rings_no_bell(engine: Engine, looker: Looker) -> None:
    engine.push("x")

    def is_quiet() -> bool:
        looker.dispatch()
        return looker.look() is not None

    wait_until(is_quiet, "it is dispatched, and there is nothing to do")
    (delivery,) = engine.consumer(lease=3600).claim(1)
    assert looker.look() is None
    # as long as something is leased, looks would only cost more
    for _ in range(LOOKS - 1):
        looker.dispatch()
        assert looker.look() is None
        looker.quiet.rung()
    engine.consumer().ack(delivery)
    wait_until(is_quiet, "there is nothing to do again")


def test_another_epoch_and_a_lost_shard_are_found(
    engine: Engine, looker: Looker, servers: Servers, keys: ShardKeys
) -> None:
    assert looker.look(Stamp("99")) is None
    assert looker.look() is not None
    engine.pause("mail")
    assert looker.look() is None
    looker.epoch = engine.topology.stamp
    looker.dispatch()
    assert looker.look() is not None
    servers.ask(keys.slot, "DEL", keys.meta)
    assert looker.look() is None


def test_a_ring_and_the_number_of_looks_end_them(looker: Looker) -> None:
    looker.quiet.rung()
    assert looker.look() is None
    looker.dispatch()
    assert [looker.look() is not None for _ in range(LOOKS + 2)] == [True] * LOOKS + [False] * 2
    looker.dispatch()
    assert looker.look() is not None


def test_a_clock_that_goes_ahead_is_found(engine: Engine, looker: Looker) -> None:
    engine.push("x", delay=FAR_S)
    looker.dispatch()
    assert looker.look() is not None
    looker.clock = NodeClock()  # a fresh reading, as after some seconds
    ahead_us = int((time.time() + FAR_S) * 1e6)
    looker.clock.now_us(lambda: ahead_us)
    assert looker.look() is None


def test_a_clock_is_read_by_one_for_all_of_a_node() -> None:
    clock, reads = NodeClock(), list[int]()

    def read() -> int:
        reads.append(1)
        return 5_000_000

    first = clock.now_us(read)
    assert first <= clock.now_us(read)
    assert 5_000_000 <= first < 5_000_000 + FRESH_S * 1e6
    assert len(reads) == 1
