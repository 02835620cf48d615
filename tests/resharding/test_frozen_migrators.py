"""Migrators that stand still between two requests, and go on when the world is another: each of the moments that is
dangerous by itself. What a search through all orders finds (``tests.sim``) is pinned here, on a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from shardq import Engine, Task
from shardq.core.calls.request import Call, Command, Stale
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.topology import Topology
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors
from tests.resharding.conftest import SHARDS
from tests.resharding.migration import Migration, moving_ids
from tests.resharding.stepping import Stepped
from tests.support.servers import Servers
from tests.support.states import FAR_S, claim, put, state_of

MORE = 7


@pytest.fixture
def id() -> str:
    return moving_ids(SHARDS, MORE)[0]


@pytest.fixture
def source(name: str, id: str) -> ShardKeys:
    return shard_keys(name, Topology(epoch=1, shards=SHARDS).shard_of(id))


@pytest.fixture
def target(name: str, id: str) -> ShardKeys:
    return shard_keys(name, Topology(epoch=1, shards=MORE).shard_of(id))


@pytest.fixture
def sweep_steps(migration: Migration, source: ShardKeys) -> Callable[[], Stepped]:
    """Makes migrators of the shard that the task is to leave."""
    return lambda: Stepped("sweep", sweep(migration.cache(), source, MoveTokens(f"{source.shard}"), MoveRate()))


def until(migration: Migration, steps: Stepped, script: str) -> None:
    """Its next request is this script's."""
    while not is_next(steps, script):
        assert not steps.done, f"there was no {script}"
        migration.step(steps, 1)


def is_next(steps: Stepped, script: str) -> bool:
    request: Command[Any] | None = steps.request
    return isinstance(request, Call) and request.script.name == script


def is_command(steps: Stepped, verb: str) -> bool:
    """Its next request is this plain command."""
    request: Command[Any] | None = steps.request
    return request is not None and not isinstance(request, Call) and request.words[0] == verb


def finish(migration: Migration, steps: Stepped) -> Any:
    migration.step(steps, 500)
    assert steps.done
    return steps.result


def settled(engine: Engine) -> None:
    engine.start()
    assert engine.resize(dry_run=True).wait(30), (engine.resize(dry_run=True).progress(), engine.stats().shards)
    engine.stop()


@pytest.mark.parametrize("moment", ["reserve", "take", "put", "clear"])
@pytest.mark.parametrize(
    "meanwhile", ["nothing", "another moves it", "back again", "cancelled", "done and pushed again"]
)
def test_at_every_request(
    engine: Engine,
    migration: Migration,
    sweep_steps: Callable[[], Stepped],
    id: str,
    moment: str,
    meanwhile: str,
) -> None:
    engine.push("first", id=id, delay=FAR_S)
    engine.resize(MORE)
    frozen = sweep_steps()
    until(migration, frozen, moment)
    match meanwhile:
        case "another moves it":
            settled(engine)
        case "back again":
            engine.resize(SHARDS)
            settled(engine)
        case "cancelled":
            assert engine.cancel(id)
        case "done and pushed again":
            assert engine.reschedule(id, delay=0)
            engine.start()
            engine.consumer().ack(claim(engine.consumer(), 1))
            engine.stop()
            engine.push("second", id=id, delay=FAR_S)
    finish(migration, frozen)
    settled(engine)
    task = engine.get(id)
    if meanwhile == "cancelled":
        assert task is None
    else:
        assert task is not None
        assert task.payload == ("second" if "pushed" in meanwhile else "first")
    homes = [] if task is None else [migration.cache().home(id)]
    assert migration.places(id, MORE) == homes
    assert engine.stats().scheduled == len(homes)


@pytest.mark.parametrize("requests", range(3, 14, 2))
@pytest.mark.parametrize("meanwhile", ["another moves them", "back again"])
def test_a_pipeline_that_stands_still(
    engine: Engine, migration: Migration, monkeypatch: pytest.MonkeyPatch, requests: int, meanwhile: str
) -> None:
    """Of three tasks one is put, one taken and one reserved."""
    monkeypatch.setattr("shardq.core.resharding.migration.GROUP", 1)
    before = Topology(epoch=1, shards=SHARDS)
    ids = [id for id in moving_ids(SHARDS, MORE, 20) if before.shard_of(id) == 0][:3]
    assert len(ids) == 3
    engine.push_many([Task(id, id=id, delay=FAR_S) for id in ids])
    engine.resize(MORE)
    cache = migration.cache()
    pipeline = Stepped("pipeline", sweep(cache, cache.keys(0), MoveTokens("one"), MoveRate()))
    migration.step(pipeline, requests)
    assert not pipeline.done
    if meanwhile == "back again":
        engine.resize(SHARDS)
    settled(engine)
    finish(migration, pipeline)
    settled(engine)
    assert {id: migration.places(id, MORE) for id in ids} == {id: [migration.cache().home(id)] for id in ids}
    assert engine.stats().scheduled == 3


def test_what_is_on_its_way_arrives_before_the_next_change(
    engine: Engine, migration: Migration, servers: Servers, source: ShardKeys, id: str
) -> None:
    """Else the way back would cross the way there, and a look-up could miss it on both."""
    engine.push("x", id=id, delay=FAR_S)
    engine.resize(MORE)
    migration.bring(id, "taken")
    engine.resize(SHARDS)
    assert servers.ask(source.slot, "EXISTS", source.moved) == 0
    assert state_of(engine, id) == "scheduled"


def test_nothing_is_taken_once_the_next_change_began(
    engine: Engine, migration: Migration, sweep_steps: Callable[[], Stepped], id: str
) -> None:
    engine.push("x", id=id, delay=FAR_S)
    engine.resize(MORE)
    frozen = sweep_steps()
    until(migration, frozen, "take")
    engine.resize(SHARDS)
    assert isinstance(finish(migration, frozen), Stale)
    assert state_of(engine, id) == "scheduled"
    settled(engine)
    assert migration.places(id, MORE) == [migration.cache().home(id)]


def test_nothing_is_taken_while_the_next_change_looks_for_what_is_on_its_way(
    engine: Engine,
    migration: Migration,
    servers: Servers,
    sweep_steps: Callable[[], Stepped],
    source: ShardKeys,
    id: str,
) -> None:
    engine.push("x", id=id, delay=FAR_S)
    engine.resize(MORE)
    frozen = sweep_steps()
    until(migration, frozen, "take")
    operator = migration.resizing(SHARDS)
    while not is_command(operator, "HLEN"):
        migration.step(operator, 1)
    assert isinstance(finish(migration, frozen), Stale)
    assert servers.ask(source.slot, "EXISTS", source.moved) == 0
    finish(migration, operator)
    assert state_of(engine, id) == "scheduled"


def test_who_clears_late_leaves_a_later_parcel(
    engine: Engine, migration: Migration, sweep_steps: Callable[[], Stepped], id: str
) -> None:
    engine.push("x", id=id, delay=FAR_S)
    engine.resize(MORE)
    frozen = sweep_steps()
    until(migration, frozen, "clear")
    engine.resize(SHARDS)
    settled(engine)
    engine.resize(MORE)
    migration.bring(id, "taken")
    finish(migration, frozen)
    assert state_of(engine, id) == "scheduled"
    settled(engine)
    assert migration.places(id, MORE) == [migration.cache().home(id)]


def test_the_end_of_one_change_does_not_touch_the_marks_of_the_next(
    engine: Engine, migration: Migration, servers: Servers, source: ShardKeys, id: str
) -> None:
    engine.push("x", id=id, delay=FAR_S)
    engine.resize(MORE)
    frozen = left_unmarked(migration)
    engine.resize(SHARDS)
    migration.bring(id, "taken")  # back
    finish(migration, frozen)
    assert servers.ask(source.slot, "HLEN", source.staged) == 1
    settled(engine)
    assert state_of(engine, id) == "scheduled"


def left_unmarked(migration: Migration) -> Stepped:
    """Moves everything; whoever forgets the earlier number stands still before the marks are removed."""
    cache = migration.cache()
    for _ in range(2):
        for keys in cache.span():
            finish(migration, Stepped("sweep", sweep(cache, keys, MoveTokens(f"s{keys.shard}"), MoveRate())))
    frozen = Stepped("forget", forget_priors(cache))
    until(migration, frozen, "unmark")
    return frozen


def test_a_task_that_changes_its_state_under_the_sweep_is_not_overlooked(
    engine: Engine, migration: Migration, sweep_steps: Callable[[], Stepped], source: ShardKeys, id: str
) -> None:
    engine.start()
    put(engine, "ready", id=id)
    engine.stop()
    engine.resize(MORE)
    steps = sweep_steps()
    until(migration, steps, "stock")  # what is scheduled was looked through, and this one was not among it
    assert engine.reschedule(id, delay=FAR_S)
    assert finish(migration, steps) is False
    settled(engine)
    assert migration.places(id, MORE) == [migration.cache().home(id)]


def test_a_task_that_another_has_taken_keeps_the_shard_from_being_swept(
    engine: Engine, migration: Migration, sweep_steps: Callable[[], Stepped], id: str
) -> None:
    engine.push("x", id=id, delay=FAR_S)
    engine.resize(MORE)
    steps = sweep_steps()
    migration.step(steps, 1)  # nothing was on its way
    migration.bring(id, "taken")
    assert finish(migration, steps) is False
    assert state_of(engine, id) == "scheduled"


@pytest.mark.parametrize("learns", [False, True])
def test_a_sweep_under_one_number_says_nothing_of_the_next(
    engine: Engine, migration: Migration, servers: Servers, source: ShardKeys, learns: bool
) -> None:
    """Also when the process hears of it in the middle of the sweep."""
    engine.resize(MORE)
    cache = migration.cache()
    steps = Stepped("sweep", sweep(cache, source, MoveTokens("one"), MoveRate()))
    until(migration, steps, "stock")
    while not is_command(steps, "HSCAN"):
        migration.step(steps, 1)
    engine.resize(9)
    if learns:
        cache.learn(engine.topology)
    assert isinstance(finish(migration, steps), Stale)
    assert servers.ask(source.slot, "HGET", source.meta, "swept") is None


@pytest.mark.parametrize("moment", ["remember", "forget"])
def test_a_dedup_window_goes_where_the_number_wants_it(
    engine: Engine, migration: Migration, servers: Servers, sweep_steps: Callable[[], Stepped], id: str, moment: str
) -> None:
    engine.start()
    engine.push("x", id=id, dedup=600)
    engine.consumer().ack(claim(engine.consumer(), 1))
    engine.stop()
    engine.resize(MORE)
    frozen = sweep_steps()
    until(migration, frozen, moment)
    engine.resize(SHARDS)
    settled(engine)
    finish(migration, frozen)
    home = migration.cache().home(id)
    for shard in range(MORE):
        keys = shard_keys(engine.name, shard)
        assert (servers.ask(keys.slot, "ZSCORE", keys.seen, id) is not None) == (keys is home)
    assert engine.push("again", id=id).outcome == "seen"


def test_a_window_made_longer_meanwhile_stays_longer(
    engine: Engine,
    migration: Migration,
    sweep_steps: Callable[[], Stepped],
    servers: Servers,
    target: ShardKeys,
    id: str,
) -> None:
    engine.start()
    engine.push("x", id=id, dedup=600)
    engine.consumer().ack(claim(engine.consumer(), 1))
    engine.stop()
    engine.resize(MORE)
    frozen = sweep_steps()
    until(migration, frozen, "remember")
    engine.push("again", id=id, dedup=6000, on_conflict="replace", delay=FAR_S)
    finish(migration, frozen)
    settled(engine)
    left_ms = float(servers.ask(target.slot, "ZSCORE", target.seen, id)) - servers.now_ms(target.slot)
    assert 5_900_000 < left_ms <= 6_000_000
