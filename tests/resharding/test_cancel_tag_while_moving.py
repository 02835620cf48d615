"""cancel_all(tag=) meets every task that was pushed before it while tasks move, to more shards and to fewer: stepped
through request by request, and with a process that is stopped in the middle of a move.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import pytest

from shardq import BulkResult, Engine, Task
from shardq.core.calls.resharding import MovingTask
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.topology import Topology
from shardq.core.operation import Operation
from shardq.core.topology_cache import TopologyCache
from shardq.features.listing.bulk import Bulk, bulk_query
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration, moving_ids
from tests.resharding.stepping import Stepped
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, state_of
from tests.support.waiting import wait_until
from tests.support.workers import Worker

# races that the searches go through, too: one case of each at each change
pytestmark = [pytest.mark.slow, pytest.mark.promise]

MOVING = 12


def all_pages(cache: TopologyCache, tag: str) -> Operation[BulkResult]:
    pages = Bulk(cache, "cancel", bulk_query("cancel", tag=tag))
    while (yield from pages.following()):
        pass
    return pages.so_far


def cancelling(migration: Migration) -> Stepped:
    return Stepped("cancel_tag", all_pages(migration.cache(), "red"))


def finish(migration: Migration, steps: Stepped) -> BulkResult:
    migration.step(steps, 500)
    assert steps.done
    assert isinstance(steps.result, BulkResult), steps.result
    return steps.result


def changed(engine: Engine, shards: int) -> None:
    """The new number is in force; there is no dispatcher, so nothing moves."""
    engine.resize(shards)


def settled(engine: Engine) -> None:
    engine.start()
    assert engine.resize(dry_run=True).wait(30), engine.resize(dry_run=True).progress()
    engine.stop()


def pushed(engine: Engine, ids: list[str]) -> None:
    """With the tag, and as many without."""
    engine.push_many([Task(id, id=id, delay=FAR_S, tags=["red"]) for id in ids])
    engine.push_many([Task(id, id=f"other-{id}", delay=FAR_S, tags=["redder"]) for id in ids])


@pytest.fixture
def ids(shards: int) -> list[str]:
    """Some that the change moves, and as many that stay."""
    before, after = Topology(epoch=1, shards=SHARDS), Topology(epoch=1, shards=shards)
    staying = [id for n in range(1000) if before.shard_of(id := f"stayer{n}") == after.shard_of(id)]
    return moving_ids(SHARDS, shards, MOVING) + staying[:MOVING]


@pytest.mark.parametrize("shards", [7, 2])
def test_one_that_stands_still_while_all_moves(
    engine: Engine, migration: Migration, shards: int, ids: list[str]
) -> None:
    requests, done, numbers = 0, False, [SHARDS, shards]
    while not done:
        engine.purge(everything=True)
        pushed(engine, ids)
        changed(engine, numbers[1])
        steps = cancelling(migration)
        migration.step(steps, requests)
        done = steps.done
        settled(engine)
        outcome = finish(migration, steps)
        assert (outcome.done, outcome.running) == (len(ids), ()), f"after {requests} requests"
        assert outcome.looked_at >= 2 * len(ids)
        assert [id for id in ids if engine.get(id)] == []
        assert engine.stats().scheduled == len(ids), "the others stay"
        numbers.reverse()
        requests += 2
    assert requests > SHARDS


@pytest.mark.parametrize("numbers", [[2, 9], [9, 3]])
@pytest.mark.parametrize("requests", [1, 3])
def test_while_the_number_changes(engine: Engine, migration: Migration, numbers: list[int], requests: int) -> None:
    """What was ahead of it is then in shards that it left behind, or that it does not know."""
    ids = engine.push_many([Task(n, delay=FAR_S, tags=["red"]) for n in range(200)])
    others = engine.push_many([Task(n, delay=FAR_S) for n in range(200)])
    steps = cancelling(migration)
    for number in numbers:
        migration.step(steps, requests)
        changed(engine, number)
        settled(engine)
    assert finish(migration, steps).done == len(ids)
    assert engine.stats().scheduled == len(others)


def test_a_running_one_that_is_retried_and_moved_meanwhile_is_cancelled_there(
    engine: Engine, migration: Migration
) -> None:
    [id] = moving_ids(SHARDS, 7)
    engine.push("x", id=id, tags=["red"])
    engine.start()
    consumer = engine.consumer(lease=60)
    [delivery] = claim(consumer, 1)
    engine.stop()
    changed(engine, 7)
    steps = cancelling(migration)
    migration.step(steps, SHARDS * 2)  # past the shard where it runs
    consumer.retry(delivery, delay=FAR_S)
    settled(engine)
    outcome = finish(migration, steps)
    assert (outcome.done, outcome.running) in ((1, ()), (0, (id,)))
    assert (state_of(engine, id) == "gone") == bool(outcome)


@pytest.mark.timeout(240)
def test_a_migrator_that_is_stopped_in_the_middle_of_a_move(url: str, name: str, servers: Servers) -> None:
    """A process, by SIGSTOP, while tasks that it took are in no shard: they are cancelled all the same."""
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(url, name=name, shards=2))
        migrator = stack.enter_context(Worker("tests.support.dispatching", url, name, 2))
        assert migrator.said()
        tasks = engine.push_many([Task(n, delay=FAR_S, tags=["red" if n % 2 else "blue"]) for n in range(10_000)])
        red, others = tasks[1::2], tasks[0::2]
        on_its_way: set[str] = set()

        def stopped_with_parcels() -> bool:
            os.kill(migrator.pid, signal.SIGSTOP)
            on_its_way.update(in_no_shard(servers, name, engine.topology))
            if on_its_way & set(red):
                return True
            on_its_way.clear()
            os.kill(migrator.pid, signal.SIGCONT)
            if engine.resize(dry_run=True).progress().done:
                # it was too fast: back, and again
                engine.resize(2 if engine.topology.shards == 8 else 8, rate=3000)
            return False

        stack.callback(lambda: os.kill(migrator.pid, signal.SIGCONT))
        engine.resize(8, rate=3000)
        wait_until(stopped_with_parcels, "it is stopped in the middle of a move", timeout=120)
        outcome = engine.cancel_all(tag="red")
        assert (outcome.done, outcome.running) == (len(red), ())
        assert recorded(servers, name, 8) & set(red) == set()
        os.kill(migrator.pid, signal.SIGCONT)
        assert engine.resize(dry_run=True).wait(90), engine.resize(dry_run=True).progress()
        assert recorded(servers, name, 8) == set(others)
        assert engine.stats().scheduled == len(others)
        assert [id for id in on_its_way if engine.get(id)] == [id for id in on_its_way if id in set(others)]


def in_no_shard(servers: Servers, name: str, topology: Topology) -> set[str]:
    """The ids of the parcels that nobody has put where they go."""
    found = set()
    for keys in (shard_keys(name, shard) for shard in topology.span()):
        # in one command: what the migrator had sent may come after it was stopped
        for id, parcel in servers.ask(keys.slot, "HGETALL", keys.moved).items():
            task = MovingTask(id.decode(), parcel)
            target = shard_keys(name, task.target)
            if servers.ask(target.slot, "HEXISTS", target.staged, f"{task.id}|{task.number}"):
                found.add(task.id)
    return found


def recorded(servers: Servers, name: str, shards: int) -> set[str]:
    """The ids of all records."""
    every = (shard_keys(name, shard) for shard in range(shards))
    return {id.decode() for keys in every for id in servers.ask(keys.slot, "HKEYS", keys.task)}
