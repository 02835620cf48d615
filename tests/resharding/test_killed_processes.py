"""Processes that are stopped and killed while the number of shards changes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from shardq import Engine, Task
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration, moving_ids
from tests.support.servers import Servers, keys_of
from tests.support.states import FAR_S
from tests.support.waiting import wait_until
from tests.support.workers import Worker


def receipts(folder: Path) -> dict[str, str]:
    """Id → outcome."""
    return dict(line.split(" ") for line in (folder / "receipts").read_text().splitlines())


def assert_each_at_home(servers: Servers, engine: Engine, ids: set[str], shards: int) -> None:
    """Of the ids, which are all there are, each is in the shard where it belongs."""
    found: dict[str, int] = {}
    for keys in keys_of(engine.name, shards):
        for id in servers.ask(keys.slot, "ZRANGE", keys.due, 0, -1):
            assert found.setdefault(id.decode(), keys.shard) == keys.shard, "an id is in two shards"
    assert found == {id: engine.topology.shard_of(id) for id in ids}


def nothing_under_way(servers: Servers, name: str, shards: int) -> bool:
    return not any(servers.ask(keys.slot, "EXISTS", keys.moved, keys.staged) for keys in keys_of(name, shards))


@pytest.mark.slow
def test_a_producer_that_slept_through_it(
    engine: Engine, servers: Servers, url: str, name: str, tmp_path: Path
) -> None:
    """Stopped again and again, wherever that is, while the number goes up and down."""
    engine.start()
    with Worker("tests.resharding.producing", url, name, tmp_path) as producer:
        assert producer.said() == "under way"
        for target in (9, 3, 16, 5):
            count = len(receipts(tmp_path))
            wait_until(lambda count=count: len(receipts(tmp_path)) > count + 20, "it pushes")  # type: ignore[misc]
            os.kill(producer.pid, signal.SIGSTOP)
            growth = engine.resize(target)
            assert growth.wait(30)
            os.kill(producer.pid, signal.SIGCONT)
        count = len(receipts(tmp_path))
        wait_until(lambda: len(receipts(tmp_path)) > count + 20, "it pushes")
        assert producer.stop() == 0
    outcomes = receipts(tmp_path)
    assert set(outcomes.values()) == {"pushed"}
    assert_each_at_home(servers, engine, outcomes.keys() | set(), 16)


@pytest.mark.slow
def test_a_dispatcher_killed_while_it_moves(engine: Engine, servers: Servers, url: str, name: str) -> None:
    ids = moving_ids(SHARDS, 12, 600)
    engine.push_many([Task(0, id=id, delay=FAR_S) for id in ids])
    with (
        Worker("tests.support.dispatching", url, name, SHARDS) as killed,
        Worker("tests.support.dispatching", url, name, SHARDS) as other,
    ):
        assert killed.said()
        assert other.said()
        # it would take half a minute: so a part is moved, however long anybody stands still
        growth = engine.resize(12, rate=20)
        wait_until(lambda: growth.progress().moved > 0, "a part is moved")
        killed.kill()
        assert growth.progress().moved < len(ids)
        assert not growth.done()
        engine.resize(12)  # the rest as fast as it goes
        assert growth.wait(30), growth
        assert growth.progress().moved == len(ids)
        assert other.stop() == 0
    assert_each_at_home(servers, engine, set(ids), 12)


def test_a_dispatcher_killed_with_tasks_on_their_way(
    engine: Engine, servers: Servers, migration: Migration, name: str
) -> None:
    """What it had taken and not put arrives, be it that the next one comes late."""
    ids = moving_ids(SHARDS, 12, 40)
    engine.push_many([Task(0, id=id, delay=0.5) for id in ids])
    engine.resize(12)
    for n, id in enumerate(ids):
        migration.bring(id, "taken" if n % 2 else "put")
    assert engine.stats().scheduled == len(ids) // 2
    time.sleep(0.6)  # past the due time of them all
    engine.start()
    consumer = engine.consumer()
    taken = []

    def all_taken() -> bool:
        taken.extend(consumer.claim(100, wait=0.2))
        return len(taken) >= len(ids)

    wait_until(all_taken, "all are taken")
    assert sorted(delivery.id for delivery in taken) == sorted(ids)
    consumer.ack(taken)
    assert engine.resize(dry_run=True).wait(30)
    # marks of tasks that were dispatched before they could be taken are removed last
    wait_until(lambda: nothing_under_way(servers, name, 12), "no parcel and no mark is left")


@pytest.mark.slow
def test_dispatchers_that_join_and_leave_while_it_moves(engine: Engine, url: str, name: str) -> None:
    engine.push_many([Task(n, delay=FAR_S, id=f"n{n}") for n in range(3000)])
    engine.start()
    with Engine(url, name=name) as second:
        growth = engine.resize(16, rate=300)
        second.start()
        wait_until(lambda: growth.progress().moved > 100, "a part is moved")
        engine.stop()
        wait_until(lambda: growth.progress().moved > 400, "the other goes on")
        engine.start()
        second.stop()
        engine.resize(16)
        assert growth.wait(30)
        assert [n for n in range(0, 3000, 50) if not engine.cancel(f"n{n}")] == []
