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
from shardq.core.calls.request import Call, Command
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.model.record import RAW, encode_record
from shardq.core.operation import Many, Operation, run
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError, Unanswered
from shardq.features.schedules import declaring, known
from shardq.features.schedules.entry import STAYS_MS, Declaration, Entry
from shardq.features.schedules.known import KnownSchedules
from shardq.features.schedules.pushing_ahead import read
from tests.resharding.stepping import Stepped

NAME = "tick"
INTERVAL_MS = 8000
"""One or two occurrences are pushed at a time."""


class World:
    """One schedule, without a dispatcher's threads; tasks are looked at where they are stored."""

    def __init__(self, driver: Driver, engine: Engine) -> None:
        self.driver = driver
        self.cache: TopologyCache = TopologyCache(engine.name, engine.topology)

    def carry(self, request: Command[Any]) -> Any:
        try:
            return self.driver.call(request)
        except ShardqError as exc:
            return exc

    def read(self) -> tuple[int, Entry]:
        found = run(self.driver, read(self.cache, [NAME]))
        return found.now_ms, found.entries[NAME]

    def pushing(self) -> Operation[Any]:
        """What a dispatcher that has just started would do now."""
        now_ms, _ = self.read()
        return KnownSchedules(self.cache).step(now_ms)

    def settle(self) -> int:
        """Returns the clock when there is nothing left to do."""
        while True:
            _, before = self.read()
            run(self.driver, self.pushing())
            now_ms, entry = self.read()
            if entry == before and entry.state.is_clear:
                return now_ms

    def tasks(self) -> dict[str, bytes]:
        """Id → record of every task that is stored, whatever its state."""
        found: dict[str, bytes] = {}
        for keys in self.cache.span():
            flat = self.driver.call(Command(keys.slot, ("HGETALL", keys.task), lambda answer: answer))
            pairs = flat.items() if isinstance(flat, dict) else zip(flat[::2], flat[1::2], strict=True)
            found |= {id.decode(): record for id, record in pairs}
        return found

    def dues(self) -> dict[str, float]:
        """Id → due time of every task that is scheduled."""
        found: dict[str, float] = {}
        for keys in self.cache.span():
            words = ("ZRANGE", keys.due, 0, -1, "WITHSCORES")
            flat = self.driver.call(Command(keys.slot, words, lambda answer: answer))
            pairs = flat if flat and isinstance(flat[0], list) else zip(flat[::2], flat[1::2], strict=True)
            found |= {id.decode(): float(due) for id, due in pairs}
        return found


def declaration(payload: int, interval_ms: int = INTERVAL_MS) -> Declaration:
    return Declaration(
        cron=None,
        interval_ms=interval_ms,
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
def test_in_any_order(world: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "RETRACT_AFTER_MS", 0)
    chance = random.Random(seed)
    run(world.driver, declaring.declare(world.cache, NAME, declaration(0)))
    payload = 0
    actors: list[Stepped] = []
    for _ in range(chance.randrange(20, 120)):
        if len(actors) < 4 and chance.random() < 0.3:
            if chance.random() < 0.7:
                actors.append(Stepped("push", world.pushing()))
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
    settled_ms = world.settle()
    tasks = world.tasks()
    twice = [at for at, count in Counter(map(instant, tasks)).items() if count > 1]
    assert twice == [], tasks
    _, entry = world.read()
    if removed or entry.state.paused:
        # of what was due before the last change nothing is taken back
        assert [id for id in tasks if instant(id) > entry.state.changed_ms] == []
        return
    assert {entry.id_of(at) for at in entry.state.batch} <= set(tasks)
    last = {id: record for id, record in tasks.items() if instant(id) > settled_ms + STAYS_MS}
    assert set(last) == {entry.id_of(instant(id)) for id in last}, "of this generation"
    assert all(record == entry.declaration.record for record in last.values())
    # a change of the payload neither leaves an occurrence out nor holds one back
    every = {at for at in entry.state.batch if at > settled_ms}
    assert every <= {instant(id) for id in tasks}
    assert [id for id, due in world.dues().items() if due > settled_ms + 60_000] == []


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_another_declaration_while_occurrences_of_the_first_are_held_back(world: World) -> None:
    """The dispatcher that held them back has died before it cancelled them, or could not reach their shard."""
    run(world.driver, declaring.declare(world.cache, NAME, declaration(0)))
    world.settle()
    run(world.driver, declaring.declare(world.cache, NAME, declaration(1, 5000)))
    dispatcher = Stepped("push", world.pushing())
    while not world.read()[1].state.held:
        assert not dispatcher.done
        dispatcher.advance(world.carry)
    run(world.driver, declaring.declare(world.cache, NAME, declaration(2, 3000)))
    settled_ms = world.settle()
    assert [id for id, due in world.dues().items() if due > settled_ms + 60_000] == []


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_a_push_whose_answer_was_lost_fails_by_the_error_of_its_server(world: World) -> None:
    """So the log says an outage once, of the server, and not once of each schedule."""
    run(world.driver, declaring.declare(world.cache, NAME, declaration(0)))
    lost = Unanswered("push_unique was sent, and its answer was lost")

    def losing() -> Operation[Any]:
        steps, answered = world.pushing(), None
        while True:
            try:
                step = steps.send(answered)
            except StopIteration as stop:
                return stop.value
            if not isinstance(step, Many):
                answered = yield step
                continue
            answered = []
            for key, call in step.pairs:
                of_push = isinstance(call, Call) and call.script.name == "push_unique"
                answered.append((key, lost if of_push else (yield call)))

    assert run(world.driver, losing()).errors == {NAME: lost}
