"""The world of one simulated run: model servers, a clock, and actors whose requests a seeded scheduler carries out.

An actor is an operation, as engines have them: it yields requests, and pauses. The scheduler chooses whose request is
next, and what becomes of it: it is carried out; it is lost before that, or its answer is; the actor dies, or stands
still. Nothing is random but by the seed, and nothing reads a real clock: the same seed is the same run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from shardq.core.calls.request import Call, Command
from shardq.core.layout.keys import shard_keys
from shardq.core.operation import Confirm, Many, Operation, Pause, Step
from shardq.core.scripts import Script
from shardq.errors import ShardqError, Unanswered
from tests.sim.model.keyspace import Keyspace
from tests.sim.model.server import Failure, Server
from tests.sim.simulation.judge import Judge, Violation

T = TypeVar("T")

NAME = "x"
MOST_SHARDS = 8
START_US = 1_700_000_000_000_000
_MOST_STEPS = 20_000


@dataclass(frozen=True)
class Faults:
    """How often each happens, of a thousand requests."""

    lost_before: int = 30
    """The request does not arrive; its sender can't know that."""
    lost_after: int = 30
    """It is carried out, and its answer does not arrive."""
    given_up: int = 200
    """Of a thousand that were lost: the time is over before it can be sent again."""
    crash: int = 5
    frozen: int = 6


NONE = Faults(0, 0, 0, 0, 0)


@dataclass(eq=False)
class Actor:
    """One process. ``begin`` makes its operation, anew after each crash."""

    name: str
    begin: Callable[[], Operation[Any]]
    mortal: bool = True
    """False for one whose death is not simulated."""
    result: Any = None
    over: bool = False
    wake_us: int = 0
    frozen_until_us: int = 0
    requests: dict[int, Command[Any]] = field(default_factory=dict)
    """Those that are under way, by their numbers."""
    _keys: list[Any] = field(default_factory=list)
    _answers: dict[int, Any] = field(default_factory=dict)
    _many: bool = False
    _running: Operation[Any] | None = None

    def start(self, now_us: int) -> None:
        self._running = self.begin()
        self._take(partial(next, self._running), now_us)

    def crash(self, now_us: int) -> None:
        """Ends it between two requests; another one of its kind starts after a while."""
        assert self._running is not None
        self._running.close()
        self.requests, self._running, self.wake_us = {}, None, now_us + 3_000_000

    @property
    def waits(self) -> bool:
        return not self.requests

    def wake(self, now_us: int) -> None:
        if self._running is None:
            self.start(now_us)
        else:
            self._take(partial(self._running.send, None), now_us)

    def answer(self, number: int, result: Any, now_us: int) -> None:
        """Gives it what became of a request: a result or a ShardqError."""
        del self.requests[number]
        self._answers[number] = result
        running = self._running
        assert running is not None
        if self.requests:
            return
        if self._many:
            answers = [(self._keys[each], self._answers[each]) for each in self._answers]
            self._take(partial(running.send, answers), now_us)
        elif isinstance(result, ShardqError):
            self._take(partial(running.throw, result), now_us)
        else:
            self._take(partial(running.send, result), now_us)

    def _take(self, advance: Callable[[], Step], now_us: int) -> None:
        """Goes on to the next step that takes time."""
        running = self._running
        assert running is not None
        while True:
            try:
                step = advance()
            except StopIteration as stop:
                self.over, self.result = True, stop.value
                return
            self._answers, self._many = {}, isinstance(step, Many)
            if isinstance(step, Command):
                self.requests = {0: step}
                return
            if isinstance(step, Many):
                pairs = list(step.pairs)
                self._keys = [key for key, _ in pairs]
                self.requests = {number: call for number, (_, call) in enumerate(pairs)}
                if pairs:
                    return
                advance = partial(running.send, [])
            elif isinstance(step, Confirm):
                # no server has a replica: there is nothing to wait for
                advance = partial(running.send, {seal.slot: "one" for seal in step.seals})
            else:
                assert isinstance(step, Pause)
                self.wake_us = now_us + max(1, round(step.seconds * 1e6))
                return


class World:
    """``servers``: how many there are; shards are on them in turns. ``scripts``: those that are run in place of ours,
    by name.
    """

    def __init__(
        self, seed: int, *, servers: int = 1, faults: Faults = NONE, scripts: Mapping[str, Script] | None = None
    ) -> None:
        self._scripts = scripts or {}
        self.draw = random.Random(seed)
        self.faults = faults
        self.now_us = START_US
        self.story: list[str] = []
        self.actors: list[Actor] = []
        self.servers = [Server(Keyspace(lambda: self.now_us, shuffle=seed)) for _ in range(servers)]
        shards = [shard_keys(NAME, shard) for shard in range(MOST_SHARDS)]
        self._server_of = {keys.slot: self.servers[keys.shard % servers] for keys in shards}
        self.judge = Judge({keys: self.server_of(keys.slot).space for keys in shards})
        self.requests = 0

    def server_of(self, slot: int) -> Server:
        return self._server_of.get(slot, self.servers[0])

    def tell(self, who: str, what: str) -> None:
        self.story.append(f"{(self.now_us - START_US) / 1000:11.3f} {who:<12} {what}")

    def run(self, until: Callable[[], bool]) -> None:
        """Carries the actors on until that, or until all of them are over."""
        for _ in range(_MOST_STEPS):
            if until() or all(actor.over for actor in self.actors):
                return
            self._step()
        raise Violation("the actors do not come to an end")

    def carry_out(self, name: str, operation: Operation[T]) -> T:
        """Carries one operation out alone, without faults. Others stand still."""
        actors, faults = self.actors, self.faults
        alone = Actor(name, lambda: operation, mortal=False)
        self.actors, self.faults = [alone], NONE
        alone.start(self.now_us)
        self.run(lambda: False)
        self.actors, self.faults = actors, faults
        result: T = alone.result
        return result

    def _step(self) -> None:
        awake = [actor for actor in self.actors if not actor.over and actor.frozen_until_us <= self.now_us]
        able = [actor for actor in awake if not actor.waits or actor.wake_us <= self.now_us]
        if not able:
            times = [max(actor.wake_us * actor.waits, actor.frozen_until_us) for actor in self.actors if not actor.over]
            self.now_us = max(self.now_us + 1, min(times))
            return
        self.now_us += self.draw.choice((0, 1, 20, 500, 3000))
        actor = self.draw.choice(able)
        if actor.waits:
            actor.wake(self.now_us)
            return
        fate = self.draw.randrange(1000)
        if actor.mortal and fate < self.faults.crash:
            self.tell(actor.name, "dies")
            actor.crash(self.now_us)
            return
        if actor.mortal and fate < self.faults.crash + self.faults.frozen:
            seconds = self.draw.choice((0.5, 3, 12))
            self.tell(actor.name, f"stands still for {seconds} s")
            actor.frozen_until_us = self.now_us + round(seconds * 1e6)
            return
        self._carry_on(actor, self.draw.choice(list(actor.requests)))

    def _carry_on(self, actor: Actor, number: int) -> None:
        call = actor.requests[number]
        fate = self.draw.randrange(1000)
        lost_before = fate < self.faults.lost_before
        lost = lost_before or fate < self.faults.lost_before + self.faults.lost_after
        raw = None
        if not lost_before:
            self.requests += 1
            try:
                raw = self._execute(actor, call)
            except Violation:
                self.tell(actor.name, _shown(call))
                raise
        self.tell(actor.name, f"{_shown(call)} → {_answer(raw, lost_before, lost)}")
        if not lost:
            actor.answer(number, _decoded(call, raw), self.now_us)
            return
        self.judge.lost(call)
        if self.draw.randrange(1000) < self.faults.given_up:
            actor.answer(number, Unanswered("its answer was lost, and the time is over"), self.now_us)
        else:
            actor.requests[number] = call.after_loss()

    def _execute(self, actor: Actor, call: Command[Any]) -> Any:
        server = self.server_of(call.slot)
        if not isinstance(call, Call):
            return server.command(*call.words)
        raw = server.run(self._scripts.get(call.script.name, call.script), call.keys, call.words)
        self.judge.executed(actor.name, call, raw, self.now_us)
        return raw


def _decoded(call: Command[Any], raw: Any) -> Any:
    if isinstance(raw, Failure):
        raise Violation(f"a server answers an error: {raw.text.decode()}, line {raw.line}")
    try:
        return call.decode(raw)
    except ShardqError as exc:
        return exc


def _shown(call: Command[Any]) -> str:
    words = call.words[2:] if isinstance(call, Call) else call.words
    name = f"{call.script.name} " if isinstance(call, Call) else ""
    shard = call.keys[0].partition("}")[0].partition(":")[2] if isinstance(call, Call) else ""
    text = " ".join(repr(word) if isinstance(word, bytes) else str(word) for word in words)
    return f"{name}{shard} {text}"[:110] + (" (again)" if call.in_doubt else "")


def _answer(raw: Any, lost_before: bool, lost: bool) -> str:
    if lost_before:
        return "lost on its way"
    return f"{str(raw)[:90]}{' (lost)' if lost else ''}"
