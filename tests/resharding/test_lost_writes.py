"""Failovers in the middle of a migration: a shard forgets all that its replicas had not confirmed. What was there
before the migration is there after it, once, and where it belongs: with the failover of any of the shards after any
request, and a migrator that goes on as if nothing had happened, or ends there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import redis

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.calls.request import Command
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import shard_keys
from shardq.core.model.task import Outcome
from shardq.core.operation import Confirm, Histories, Operation, run
from shardq.core.producer.commands_by_id import cancel
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import NotConfirmed
from shardq.core.topology_upkeep import create_topology
from shardq.errors import ShardqError
from tests.resharding.migration import moving_ids
from tests.resharding.picture import Picture, picture
from tests.resharding.stepping import Stepped
from tests.resharding.worlds import opened, requests_of_one
from tests.support.states import FAR_S, claim, put

BEFORE, AFTER = 1, 3

MOST = 300
"""Requests in which any operation ends."""


class World:
    """Shard 0 with what belongs to two others since the last change. Each of them has a replica, which confirms what is
    asked for and may take over: one server stands for all of them."""

    def __init__(self, url: str, name: str, driver: Driver, client: redis.Redis) -> None:
        self._name, self._driver, self._client = name, driver, client
        self._shards = [shard_keys(name, shard) for shard in range(AFTER)]
        self._numbers = iter(range(1, 1_000_000))
        dead, done, *scheduled = moving_ids(BEFORE, AFTER, 6)
        self.scheduled = scheduled
        with Engine(url, name=name, shards=BEFORE) as engine:
            engine.start()
            put(engine, "dead", id=dead)
            engine.push("x", id=done, dedup=600)
            engine.consumer().ack(claim(engine.consumer(), 1))
            engine.stop()
            engine.push_many([Task(id, id=id, delay=FAR_S) for id in scheduled])
            engine.resize(AFTER)
        self._first = [self._held(keys.prefix) for keys in self._shards]
        whole = self._held(driver_prefix := f"shardq:{{{name}}}:")
        assert whole, driver_prefix
        self._whole = whole
        self._replicas = list(self._first)
        self._histories = [0] * AFTER
        self._wanted = self._picture()

    def begin(self) -> None:
        """Everything as it was, and on the replicas."""
        self._restore(f"shardq:{{{self._name}}}:", self._whole)
        for shard, keys in enumerate(self._shards):
            self._restore(keys.prefix, self._first[shard])
            self._replicas[shard] = self._first[shard]
        self._wanted = self._picture()

    def migrator(self) -> Stepped:
        cache = self._cache()
        return self._stepped(self._sweeping(cache))

    def step(self, steps: Stepped, times: int) -> None:
        for _ in range(times):
            steps.advance(self._carry)

    def finish(self, steps: Stepped) -> None:
        self.step(steps, MOST)
        assert steps.done

    def fail_over(self, shard: int) -> None:
        self._restore(self._shards[shard].prefix, self._replicas[shard])
        self._histories[shard] += 1

    def cancel(self, id: str) -> int:
        """Returns the shard in which it was."""
        asked: list[Command[Any]] = []
        steps = self._stepped(cancel(self._cache(), id))
        while not steps.done:
            asked += [steps.request] if steps.request is not None else []
            self.step(steps, 1)
        assert steps.result is Outcome.CANCELLED
        del self._wanted.tasks[id]
        return next(shard for shard, keys in enumerate(self._shards) if keys.slot == asked[-1].slot)

    def confirm(self, shards: Iterable[int] = range(AFTER)) -> None:
        for shard in shards:
            self._replicas[shard] = self._held(self._shards[shard].prefix)

    def end(self) -> None:
        """Somebody new brings the change to its end."""
        for _ in range(10):
            cache = self._cache()
            for keys in cache.span():
                self.finish(self._stepped(sweep(cache, keys, MoveTokens(f"m{next(self._numbers)}"), MoveRate())))
            last = self._stepped(forget_priors(cache))
            self.finish(last)
            if last.result is True:
                return
        raise AssertionError(f"{self._picture()} is no end of it")

    def check(self) -> None:
        topology, seen = self._cache().topology, self._picture()
        assert topology.priors == ()
        assert seen.wrong == []
        assert seen.tasks == self._wanted.tasks
        assert seen.places == {id: f"shard {topology.shard_of(id)}" for id in self._wanted.tasks}
        assert seen.windows == self._wanted.windows
        # one that is elsewhere as well does no harm: it is trimmed at its end
        assert [id for id, shards in seen.window_shards.items() if topology.shard_of(id) not in shards] == []
        assert seen.moving_tasks == 0

    def _cache(self) -> TopologyCache:
        return TopologyCache(self._name, run(self._driver, create_topology(self._name, 1)))

    def _sweeping(self, cache: TopologyCache) -> Operation[None]:
        source = cache.keys(0)
        for _ in range(5):
            with suppress(NotConfirmed):
                if (yield from sweep(cache, source, MoveTokens(f"m{next(self._numbers)}"), MoveRate())):
                    return

    def _stepped(self, operation: Operation[Any]) -> Stepped:
        return Stepped("migration", operation, confirm=self._confirm)

    def _confirm(self, step: Confirm) -> Histories:
        shards = {keys.slot: shard for shard, keys in enumerate(self._shards)}
        for seal in step.seals:
            shard = shards[seal.slot]
            self._replicas[shard] = self._held(self._shards[shard].prefix)
        return {seal.slot: f"{shards[seal.slot]}.{self._histories[shards[seal.slot]]}" for seal in step.seals}

    def _carry(self, request: Command[Any]) -> Any:
        try:
            return self._driver.call(request)
        except ShardqError as exc:
            return exc

    def _picture(self) -> Picture:
        return picture(self._client, self._shards)

    def _held(self, prefix: str) -> dict[Any, Any]:
        return {key: value for key in self._client.keys(f"{prefix}*") if (value := self._client.dump(key))}

    def _restore(self, prefix: str, kept: dict[Any, Any]) -> None:
        pipe = self._client.pipeline()
        for key in self._client.keys(f"{prefix}*"):
            pipe.delete(key)
        for key, value in kept.items():
            pipe.restore(key, 0, value)
        pipe.execute()


pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("small_groups")]


@pytest.fixture
def world(single: Server, name: str) -> Iterator[World]:
    yield from opened(World, single.url, name)


@pytest.fixture
def requests(world: World) -> int:
    return requests_of_one(world)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("shard", range(AFTER))
@pytest.mark.parametrize("goes_on", [True, False], ids=["goes on", "ends"])
def test_a_failover_anywhere(world: World, requests: int, shard: int, goes_on: bool) -> None:
    for moment in range(requests + 1):
        world.begin()
        migrator = world.migrator()
        world.step(migrator, moment)
        world.fail_over(shard)
        if goes_on:
            world.finish(migrator)
        world.end()
        world.check()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("shard", range(AFTER))
def test_what_is_done_stays_done(world: World, requests: int, shard: int) -> None:
    """A task that was put and is gone by now is not put again, whatever is found of it."""
    for moment in range(requests + 1):
        world.begin()
        migrator = world.migrator()
        world.step(migrator, moment)
        world.cancel(world.scheduled[moment % len(world.scheduled)])
        world.confirm()
        world.fail_over(shard)
        world.finish(migrator)
        world.end()
        world.check()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("others", [0, 3, 9, 14])
def test_what_is_done_where_a_task_goes_stays_done(world: World, requests: int, others: int) -> None:
    """Whoever puts a moving task where it goes: no failover of where it came from brings it back. ``others``: as many
    requests of another migrator go before."""
    for moment in range(requests + 1):
        world.begin()
        migrator = world.migrator()
        world.step(migrator, moment)
        world.step(world.migrator(), others)
        shard = world.cancel(world.scheduled[moment % len(world.scheduled)])
        world.confirm([shard])
        world.fail_over(0)
        world.finish(migrator)
        world.end()
        if shard != 0:
            world.check()
