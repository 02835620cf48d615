"""Two dispatchers and somebody who changes the schedule, one request at a time in any order, each of whom may die
between any two: an occurrence runs once, and nothing that was taken back runs.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from shardq import Engine
from shardq.calls import schedules as calls
from shardq.calls.request import Command
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.errors import ShardqError
from shardq.model.record import RAW, encode_record
from shardq.operation import Operation, run
from shardq.producer.packing import Packer
from shardq.schedules import declaring
from shardq.schedules.entry import Declaration, Entry, decode_entry
from shardq.schedules.planning import plan
from shardq.schedules.pushing_ahead import push_ahead
from shardq.schedules.retracting import retract
from shardq.topology_cache import TopologyCache
from tests.resharding.stepping import Stepped

NAME = "tick"
INTERVAL_MS = 8000
"""One or two occurrences are pushed at a time."""


class World:
    """One schedule, without a dispatcher's threads; tasks are looked at where they are stored."""

    def __init__(self, driver: Driver, engine: Engine) -> None:
        self.driver = driver
        self.cache: TopologyCache = TopologyCache(engine.name, engine.topology)
        self.packer = Packer(RAW, max_payload=10)

    def carry(self, request: Command[Any]) -> Any:
        try:
            return self.driver.call(request)
        except ShardqError as exc:
            return exc

    def read(self) -> tuple[int, Entry]:
        found = self.driver.call(calls.schedules(self.cache.control, [NAME]))
        return found.now_ms, decode_entry(NAME, *found.stored[NAME])

    def pushing(self) -> Operation[Any] | None:
        """What a dispatcher would do now; None: nothing."""
        now_ms, entry = self.read()
        state = entry.state
        if state.retract or state.held:
            return retract(self.cache, entry)
        if state.removed or state.paused:
            return None
        if not state.pushed:
            return push_ahead(self.cache, self.packer, {}, [entry], read_s=float("inf"))
        push = plan(entry, entry.declaration.timetable(), now_ms).push
        if not push:
            return None
        return push_ahead(
            self.cache, self.packer, {NAME: (entry, entry.intending(push, now_ms))}, [], read_s=float("inf")
        )

    def settle(self) -> None:
        while (work := self.pushing()) is not None:
            run(self.driver, work)

    def tasks(self) -> dict[str, bytes]:
        """Id → record of every task that is stored, whatever its state."""
        found: dict[str, bytes] = {}
        for keys in self.cache.span():
            flat = self.driver.call(Command(keys.slot, ("HGETALL", keys.task), lambda answer: answer))
            pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
            found |= {id.decode(): record for id, record in pairs}
        return found


def declaration(payload: int) -> Declaration:
    return Declaration(
        cron=None,
        interval_ms=INTERVAL_MS,
        tz="UTC",
        topic="t",
        jitter_ms=0,
        catch_up="all",
        record=encode_record(RAW, b"%d" % payload),
    )


@pytest.fixture
def world(url: str, name: str) -> Iterator[World]:
    with Engine(url, name=name, shards=2) as engine:
        driver = Driver(Settings.from_url(url))
        driver.open()
        yield World(driver, engine)
        driver.close()


def instant(id: str) -> int:
    """The occurrence that an id names, in ms."""
    return round(dt.datetime.fromisoformat(id.partition("@")[2].partition("~")[0]).timestamp() * 1000)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_in_any_order(world: World, seed: int) -> None:
    chance = random.Random(seed)
    run(world.driver, declaring.declare(world.cache, NAME, declaration(0)))
    payload = 0
    actors: list[Stepped] = []
    for _ in range(chance.randrange(20, 120)):
        if len(actors) < 4 and chance.random() < 0.3:
            if chance.random() < 0.7:
                if (work := world.pushing()) is not None:
                    actors.append(Stepped("push", work))
            elif chance.random() < 0.6:
                payload += 1
                change = declaring.declare(world.cache, NAME, declaration(payload))
                actors.append(Stepped("declare", change))
            else:
                paused = chance.random() < 0.5
                actors.append(Stepped("pause", declaring.pause(world.cache, NAME, paused=paused)))
        if actors:
            actor = chance.choice(actors)
            actor.advance(world.carry, lost=chance.random() < 0.1)
            if actor.done or chance.random() < 0.03:
                actors.remove(actor)  # it has died, or is done
    removed = chance.random() < 0.3
    if removed:
        run(world.driver, declaring.remove(world.cache, NAME))
    # dispatchers that are left come to their end, as if they had been frozen until now; who changed something has died
    for actor in actors:
        while not actor.done and actor.what == "push":
            actor.advance(world.carry)
    world.settle()
    tasks = world.tasks()
    twice = [at for at, count in Counter(map(instant, tasks)).items() if count > 1]
    assert twice == [], tasks
    _, entry = world.read()
    # of what was due before the last change nothing is taken back
    after = {id: record for id, record in tasks.items() if instant(id) > entry.state.changed_ms}
    if removed or entry.state.paused:
        assert after == {}
    else:
        assert {entry.id_of(at) for at in entry.state.batch} <= set(tasks)
        assert set(after) == {entry.id_of(instant(id)) for id in after}, "of this generation"
        assert all(record == entry.declaration.record for record in after.values())
