"""Two processes restore what a server lost, at once; an engine is begun anew in the middle of a push and of a resize.
Carried out on the model of a server, with up to three changes from one process to the other, at every request.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from shardq.core.calls.control import pairs
from shardq.core.calls.request import Call, Command
from shardq.core.layout.keys import control_keys, shard_keys
from shardq.core.layout.topology import Limit, TopicSettings, Topology
from shardq.core.model.record import RAW, encode_record
from shardq.core.operation import Operation
from shardq.core.producer.packing import Entries, Packer
from shardq.core.producer.pushing import push_one
from shardq.core.resharding.resizing import resize
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_upkeep import create_topology, open_shards, refresh
from shardq.errors import AnotherEngine, ShardqError
from tests.resharding.stepping import Stepped
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Server

NAME, SWITCHES = "x", 3

FIRST = Topology(epoch=1, shards=4, word="a", engine="e")


class World:
    """A server, and the processes' ways to it."""

    def __init__(self, stored: Topology) -> None:
        self.space = Keyspace(lambda: time.time_ns() // 1000)
        self.server = Server(self.space)
        self.alone(publish(stored))

    def carry(self, request: Command[Any]) -> Any:
        if isinstance(request, Call):
            raw = self.server.run(request.script, request.keys, request.words)
        else:
            raw = self.server.command(*request.words)
        self.space.messages.clear()
        try:
            return request.decode(raw)
        except ShardqError as exc:
            return exc

    def alone(self, operation: Operation[Any]) -> Any:
        steps = Stepped("alone", operation)
        while not steps.done:
            steps.advance(self.carry)
        if isinstance(steps.result, ShardqError):
            raise steps.result
        return steps.result

    def stored(self) -> Topology:
        fields = self.server.command("HGETALL", control_keys(NAME).topology)
        assert isinstance(fields, list)
        settings = self.server.command("HGETALL", control_keys(NAME).settings)
        assert isinstance(settings, list)
        return Topology.from_fields(pairs(fields)).with_stored(pairs(settings))

    def holders(self, id: str) -> set[int]:
        """The shards that have a record of the id."""
        keys = (shard_keys(NAME, shard) for shard in range(4))
        return {each.shard for each in keys if self.server.command("HEXISTS", each.task, id) == 1}


def publish(topology: Topology) -> Operation[None]:
    """A topology that is stored, and told to its shards."""
    from shardq.core.calls import control

    settings = {topic: each.to_text() for topic, each in topology.topics.items()}
    yield control.declare(control_keys(NAME), 0, topology.to_fields(), settings, whole=True)
    cache = TopologyCache(NAME, topology)
    yield from open_shards(cache, cache.span())


def schedules(first: Stepped, second: Stepped, carry: Callable[[Command[Any]], Any], turns: tuple[int, ...]) -> bool:
    """Goes by turns: so many requests of the one, then of the other; then each to its end. Returns False where a turn
    was longer than what was left: a schedule that is another one's.
    """
    for number, turn in enumerate(turns):
        steps = (first, second)[number % 2]
        for _ in range(turn):
            if steps.done:
                return False
            steps.advance(carry)
    for steps in (first, second):
        while not steps.done:
            steps.advance(carry)
    return True


def all_turns(most: int, impossible: set[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """All schedules of up to so many turns, of one to eight requests each. None that goes on from an impossible one, or
    has a longer turn than that.
    """

    def longer(turns: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        yield turns
        if len(turns) < most and turns not in impossible:
            for turn in range(0 if not turns else 1, 9):
                yield from longer((*turns, turn))
                if (*turns, turn) in impossible:
                    break

    return longer(())


def known_by(topology: Topology, before: Topology | None = None) -> TopologyCache:
    cache = TopologyCache(NAME, before or topology)
    cache.learn(topology)
    return cache


PAUSED = FIRST.following(topics={"mail": TopicSettings(paused=True)})
LIMITED = FIRST.following(topics={"news": TopicSettings(limit=Limit(rate=5.0))})
RESIZED = msgspec.structs.replace(FIRST.following(shards=2), epoch=9, since=9)
LATER = msgspec.structs.replace(PAUSED, epoch=12, since=11, shards=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stored", "one", "other"),
    [
        (FIRST, (FIRST, RESIZED), (FIRST, RESIZED)),
        (FIRST, (FIRST, RESIZED), (FIRST, LATER)),
        (LIMITED, (FIRST, PAUSED), (FIRST, PAUSED)),
        (LIMITED, (FIRST, PAUSED), (FIRST, LATER)),
        (LIMITED, (FIRST, PAUSED), (FIRST, LIMITED)),
    ],
    ids=[
        *("both know the same", "one knows more", "two of a collision", "a collision, and a lost change"),
        "a collision, and one that knows the other change",
    ],
)
def test_two_that_restore(stored: Topology, one: tuple[Topology, Topology], other: tuple[Topology, Topology]) -> None:
    """They agree, nothing that was known is looked at less, and what was changed is in force."""
    schedules_tried = 0
    impossible: set[tuple[int, ...]] = set()
    for turns in all_turns(SWITCHES, impossible):
        world = World(stored)
        caches = [known_by(after, before) for before, after in (one, other)]
        steps = [Stepped(f"process {number}", refresh(cache)) for number, cache in enumerate(caches)]
        if not schedules(steps[0], steps[1], world.carry, turns):
            impossible.add(turns)
            continue
        schedules_tried += 1
        for _ in range(2):
            for cache in caches:
                world.alone(refresh(cache))
        now = world.stored()
        assert {cache.topology.stamp for cache in caches} == {now.stamp}, turns
        newest = max((stored, one[1], other[1]), key=lambda each: each.epoch)
        assert now.shards == newest.shards, turns
        assert set(now.numbers) >= {stored.shards, newest.shards}, turns
        if newest.epoch == stored.epoch:
            assert now.paused == {"mail"}, turns
            assert list(now.limits) == ["news"], turns
        metas = [world.server.command("HGET", shard_keys(NAME, shard).meta, "epoch") for shard in now.span()]
        assert set(metas) == {now.stamp.encode()}, turns
    assert schedules_tried > 30


def flush(world: World) -> Operation[None]:
    """The server loses everything, and a process creates the engine with one shard."""
    yield Command(0, ("TIME",), lambda _: world.space.keys.clear())
    yield from create_topology(NAME, 1)


def pushed(cache: TopologyCache, id: str) -> Operation[Any]:
    packer = Packer.__new__(Packer)
    packer.pushed = 0
    return push_one(cache, packer, Entries([id], [id, 0, encode_record(RAW, b"hi")], []))


@pytest.mark.slow
def test_an_engine_that_is_begun_anew_in_the_middle_of_a_push() -> None:
    """What is acknowledged after that is in a shard of the new one."""
    impossible: set[tuple[int, ...]] = set()
    for turns in all_turns(SWITCHES, impossible):
        world = World(FIRST)
        cache = known_by(FIRST)
        begun = Stepped("begun anew", flush(world))
        push = Stepped("push", pushed(cache, "an-id"))
        if not schedules(begun, push, world.carry, turns):
            impossible.add(turns)
            continue
        assert not isinstance(push.result, ShardqError), (turns, push.result)
        now = world.stored()
        assert world.holders("an-id") <= set(now.span()), turns
        again = world.alone(pushed(cache, "later"))
        assert again == "later"
        assert world.holders("later") <= set(world.stored().span())
        assert world.holders("later"), turns
        assert cache.topology.engine == world.stored().engine


@pytest.mark.slow
def test_an_engine_that_is_begun_anew_in_the_middle_of_a_resize() -> None:
    impossible: set[tuple[int, ...]] = set()
    for turns in all_turns(SWITCHES, impossible):
        world = World(FIRST)
        cache = known_by(FIRST)
        begun = Stepped("begun anew", flush(world))
        resized = Stepped("resize", resize(cache, 2, rate=None, members=0))
        if not schedules(begun, resized, world.carry, turns):
            impossible.add(turns)
            continue
        for each in (begun, resized):
            assert not isinstance(each.result, AnotherEngine), (turns, each.result)
        world.alone(refresh(cache))
        assert cache.topology.stamp == world.stored().stamp, turns
        assert world.alone(pushed(cache, "later")) == "later"
        assert world.holders("later") <= set(world.stored().span()), turns


def test_a_known_engine_that_was_there_before_is_left_alone() -> None:
    """Whatever this process does: nothing is written."""
    other = msgspec.structs.replace(FIRST, engine="f", word="b", created=1)
    for operation in (
        refresh,
        lambda cache: pushed(cache, "an-id"),
        lambda cache: resize(cache, 2, rate=None, members=0),
    ):
        world = World(other)
        before = world.space.dump()
        with pytest.raises(AnotherEngine):
            world.alone(operation(known_by(RESIZED, FIRST)))
        assert world.space.dump() == before
