"""Two migrators of one shard, each of which stands still, or is killed, after any number of its requests: every second
pair of numbers that there is. The tasks are as they were after every single request, and in the end all of them are at
home.

What other operations do meanwhile is in ``test_frozen_migrators`` and, at random, in ``test_random_interleavings``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
import redis

from cluster.server import Server
from shardq import Engine, Task
from shardq.core.calls.request import Command
from shardq.core.drivers.sync import Driver
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.model.task import Outcome
from shardq.core.operation import Operation, run
from shardq.core.producer.by_id import cancel, reschedule
from shardq.core.recovery import create_topology
from shardq.core.resharding.migration import MoveRate, MoveTokens, sweep
from shardq.core.resharding.resizing import forget_priors
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError
from tests.resharding.judge import judged
from tests.resharding.migration import moving_ids
from tests.resharding.picture import picture
from tests.resharding.stepping import Stepped
from tests.resharding.worlds import opened, requests_of_one
from tests.support.states import FAR_S, claim, put

BEFORE, AFTER = 1, 3

LATER_MS = 4_000_000_000_000

MOST = 200
"""Requests in which any operation ends."""


class World:
    """Shard 0 with what belongs to two others since the last change: scheduled and dead tasks, and a dedup window. As
    often as it is wanted."""

    def __init__(self, url: str, name: str, driver: Driver, client: redis.Redis) -> None:
        self._name, self._driver, self._client = name, driver, client
        self._shards = [shard_keys(name, shard) for shard in range(AFTER)]
        self._numbers = count(1)
        dead, done, *scheduled = moving_ids(BEFORE, AFTER, 6)
        self._cancelled, self._rescheduled, *_ = scheduled
        with Engine(url, name=name, shards=BEFORE) as engine:
            engine.start()
            put(engine, "dead", id=dead)
            engine.push("x", id=done, dedup=600)
            engine.consumer().ack(claim(engine.consumer(), 1))
            engine.stop()
            engine.push_many([Task(id, id=id, delay=FAR_S) for id in scheduled])
            engine.resize(AFTER)
        self._kept = {key: value for key in client.keys(f"shardq:{{{name}*") if (value := client.dump(key))}
        self._seen = self._first = self._wanted = picture(client, self._shards)

    def begin(self) -> None:
        """Everything as it was."""
        pipe = self._client.pipeline()
        pipe.delete(*self._client.keys(f"shardq:{{{self._name}*"))
        for key, value in self._kept.items():
            pipe.restore(key, 0, value)
        pipe.execute()
        self._seen = self._wanted = self._first

    def migrator(self) -> Stepped:
        cache = self._cache()
        return Stepped("migrator", self._sweeping(cache, cache.keys(0)))

    def step(self, steps: Stepped, times: int) -> None:
        for _ in range(times):
            steps.advance(self._carry)

    def repeat(self, steps: Stepped, times: int) -> None:
        """Steps that were judged when they were taken before."""
        for _ in range(times):
            steps.advance(self._answer)
        self._seen = picture(self._client, self._shards)

    def finish(self, steps: Stepped) -> None:
        self.step(steps, MOST)
        assert steps.done

    def end(self) -> None:
        """Somebody new brings the change to its end."""
        cache = self._cache()
        for keys in cache.span():
            self._finish(self._sweeping(cache, keys))
        assert self._finish(forget_priors(cache)) is True

    def change(self) -> None:
        """One task is cancelled, and one has a new time."""
        assert self._finish(cancel(self._cache(), self._cancelled)) is Outcome.CANCELLED
        assert self._finish(reschedule(self._cache(), self._rescheduled, LATER_MS)) is Outcome.MOVED
        self._wanted = self._seen

    def check(self) -> None:
        """Everything is where it belongs, as it was or was changed, and nothing else is there."""
        topology = self._cache().topology
        assert topology.priors == ()
        assert self._seen.tasks == self._wanted.tasks
        assert self._seen.places == {id: f"shard {topology.shard_of(id)}" for id in self._wanted.tasks}
        assert self._seen.windows == self._first.windows
        assert self._seen.window_shards == {id: {topology.shard_of(id)} for id in self._first.windows}
        assert self._client.exists(*(key for keys in self._shards for key in (keys.moved, keys.staged))) == 0

    def _cache(self) -> TopologyCache:
        return TopologyCache(self._name, run(self._driver, create_topology(self._name, 1)))

    def _sweeping(self, cache: TopologyCache, keys: ShardKeys) -> Operation[None]:
        """Until nothing is found there."""
        numbers = MoveTokens(f"m{next(self._numbers)}")
        while not (yield from sweep(cache, keys, numbers, MoveRate())):
            pass

    def _finish(self, operation: Operation[Any]) -> Any:
        steps = Stepped("the end", operation)
        self.finish(steps)
        return steps.result

    def _answer(self, request: Command[Any]) -> Any:
        try:
            return self._driver.call(request)
        except ShardqError as exc:
            return exc

    def _carry(self, request: Command[Any]) -> Any:
        result = self._answer(request)
        before, self._seen = self._seen, picture(self._client, self._shards)
        assert judged(request, result, before, self._seen, int(time.time() * 1000)) == []
        return result


pytestmark = pytest.mark.usefixtures("small_groups")


@pytest.fixture
def world(single: Server, name: str) -> Iterator[World]:
    yield from opened(World, single.url, name)


@pytest.fixture
def requests(world: World) -> int:
    return requests_of_one(world)


PARTS = 4
"""Tests that share the pairs of numbers, so that several processes can run them."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("killed", [False, True])
def test_each_stands_still_anywhere(world: World, requests: int, killed: bool, part: int) -> None:
    """Then both go on. ``killed``: a third does it all, and only then, when the change is long over, do they."""
    for one in range(part, requests + 1, PARTS):
        for other in range(one % 2, requests + 1, 2):
            world.begin()
            first, second = world.migrator(), world.migrator()
            known = max(0, other - 2)
            if known:
                world.repeat(first, one)
                world.repeat(second, known)
            else:
                world.step(first, one)
            world.step(second, other - known)
            if killed:
                world.end()
                world.change()
                world.check()
            world.finish(second)
            world.finish(first)
            if not killed:
                world.end()
            world.check()
