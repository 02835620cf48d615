"""Several processes: every shard has one poller, whoever comes, goes, or dies."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from shardq import Engine, Task
from shardq.layout.keys import control_keys, shard_keys
from tests.support.servers import Servers
from tests.support.states import state_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

SHARDS = 8


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as engine:
        yield engine


@pytest.fixture
def other(engine: Engine, url: str, name: str) -> Iterator[Worker]:
    """Another process that dispatches."""
    with Worker("tests.support.dispatching", url, name, SHARDS) as worker:
        assert worker.said()
        yield worker


def mine(engine: Engine) -> set[int]:
    """The shards that this process serves."""
    return {shard.shard for shard in engine.stats().shards if shard.poller == "running"}


def members(servers: Servers, name: str) -> list[str]:
    keys = control_keys(name)
    return [member.decode() for member in servers.ask(keys.slot, "ZRANGE", keys.members, 0, -1)]


def served(engine: Engine) -> set[int]:
    """The shards where a task due now becomes ready, whoever does it."""
    ids = {shard: _id_in(engine, shard) for shard in range(SHARDS)}
    receipts = engine.push_many([Task("x", id=id, on_conflict="replace") for id in ids.values()])
    assert len(receipts) == SHARDS
    deadline = time.monotonic() + 0.5
    ready: set[int] = set()
    while len(ready) < SHARDS and time.monotonic() < deadline:
        ready = {shard for shard, id in ids.items() if state_of(engine, id) == "ready"}
    return ready


def _id_in(engine: Engine, shard: int) -> str:
    return next(id for n in range(999) if engine.topology.shard_of(id := f"mine-{n}") == shard)


ALL = set(range(SHARDS))


def test_two_processes_share_the_shards_evenly(engine: Engine, other: Worker, servers: Servers, name: str) -> None:
    engine.start()
    wait_until(lambda: len(mine(engine)) == SHARDS // 2, "this process serves a half")
    assert len(engine.stats().dispatchers) == 2
    assert sorted(engine.stats().dispatchers) == sorted(members(servers, name))
    wait_until(lambda: served(engine) == ALL, "every shard is served")
    other.stop()
    wait_until(lambda: mine(engine) == ALL, "this process serves them all")


def test_two_engines_of_one_process_split_without_overlap(engine: Engine, url: str, name: str) -> None:
    with Engine(url, name=name) as second, Engine(url, name=name) as third:
        for each in (engine, second, third):
            each.start()

        def split() -> bool:
            owned = [mine(each) for each in (engine, second, third)]
            return sorted(map(len, owned)) == [2, 3, 3] and set.union(*owned) == ALL

        wait_until(split, "each shard has one poller")
        second.stop()
        wait_until(lambda: len(mine(engine)) == len(mine(third)) == 4, "the two that are left share")
        assert mine(engine) | mine(third) == ALL


def test_the_shards_of_a_killed_process_are_served_again(engine: Engine, other: Worker) -> None:
    engine.start()
    wait_until(lambda: len(mine(engine)) == SHARDS // 2, "this process serves a half")
    own = mine(engine)
    other.kill()
    killed = time.monotonic()
    assert served(engine) >= own  # nobody else is disturbed
    wait_until(lambda: mine(engine) == ALL, "this process serves them all")
    assert time.monotonic() - killed < 3.5
    assert served(engine) == ALL


def test_a_process_that_stops_is_replaced_at_once(engine: Engine, url: str, name: str) -> None:
    with Engine(url, name=name) as second:
        engine.start()
        second.start()
        wait_until(lambda: len(mine(engine)) == len(mine(second)) == SHARDS // 2, "they share")
        second.stop()
        stopped = time.monotonic()
        wait_until(lambda: mine(engine) == ALL, "the other one serves them all")
        assert time.monotonic() - stopped < 0.3


def test_a_heartbeat_from_the_future_does_not_live_forever(engine: Engine, servers: Servers, name: str) -> None:
    keys = control_keys(name)
    ahead_ms = int(servers.now_ms(keys.slot)) + 3_600_000
    servers.ask(keys.slot, "ZADD", keys.members, ahead_ms, "ghost-of-another-clock")
    engine.start()
    wait_until(lambda: mine(engine) == ALL, "all shards are served by the living")
    assert len(members(servers, name)) == 1


def test_members_stand_while_their_slot_can_not_be_reached(
    engine: Engine, servers: Servers, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine.start()
    wait_until(lambda: mine(engine) == ALL, "all shards are served")
    keys = control_keys(name)
    servers.ask(keys.slot, "RENAME", keys.members, f"{keys.prefix}elsewhere")
    servers.ask(keys.slot, "SET", keys.members, "not a sorted set")
    wait_until(lambda: "the heartbeat fails, keeping the present shards" in caplog.text, "the log says it")
    assert served(engine) == ALL
    servers.ask(keys.slot, "DEL", keys.members, f"{keys.prefix}elsewhere")
    wait_until(lambda: "the heartbeat works again" in caplog.text, "the log says it")
    assert caplog.text.count("the heartbeat fails") == 1
    assert mine(engine) == ALL


def test_a_stopped_process_leaves_nothing_of_itself(engine: Engine, servers: Servers, name: str) -> None:
    engine.start()
    assert len(members(servers, name)) == 1
    engine.stop()
    assert members(servers, name) == []
    assert shard_keys(name, 0).prefix.encode() + b"meta" in servers.held(name)
