"""The search: every order in which statements, commits and requests of some commands can be carried out, with at
most so many crashes, lost answers and long times, from one beginning. States that were met before are not gone on from
again.

A statement that changes rows is two steps: it is carried out, and it is committed. In between nobody else sees what it
did, and who needs its rows waits. Where a command dies in between, or the answer to its commit is lost, the server
commits or takes back by itself, at any time from then on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

from shardq.core.calls import consume
from shardq.core.calls.consume import Claim, SettleAck
from shardq.core.scripts import Script
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Conflict, Unanswered, Unavailable
from tests.judge.judge import Undecided, Violated, judged
from tests.judge.model import Op
from tests.sim.far.actors import (
    GIVE_UP,
    LOCK,
    LOST,
    Commit,
    Given,
    Request,
    Sql,
    Stand,
    given,
    patched,
    stand_of,
)  # fmt: skip
from tests.sim.far.kinds import BEGUN, HELD_MS, MARGIN_MS, OWN, RELAYED, START_MS, TICK_MS, Kind, loaded, order
from tests.sim.far.tables import Changes, Rows, Tables, committed_with
from tests.sim.invariants import Violation
from tests.sim.search.actors import shown
from tests.sim.search.exhaustive import OURS, RULES, Exhaustive, Found, world_of
from tests.sim.search.kinds import LEASE_MS, TOPIC, claim_op
from tests.sim.search.world import World, _dispatched

SERVER = -1
"""Who has a statement that nobody waits for any more."""


class Budget(NamedTuple):
    """How often each may happen."""

    crashes: int = 1
    losses: int = 1
    ticks: int = 0
    holds: int = 0
    """How often all commands are held, when each has begun, for longer than Redis remembers that a row was moved."""


class Pending(NamedTuple):
    """Changes that are not committed."""

    who: int
    changes: tuple[tuple[Any, Any], ...]
    began_ms: int


class Progress(NamedTuple):
    """How far one command has come."""

    given: tuple[Given, ...] = ()
    start_us: int = 0
    is_dead: bool = False
    began_at: int = -1
    ended_at: int = -1

    @property
    def marks(self) -> tuple[Any, ...]:
        return (self.start_us, *((each.mark, each.now_us) for each in self.given))


class _Step(NamedTuple):
    before: _Step | None
    text: str

    def __str__(self) -> str:
        return self.text


class _State(NamedTuple):
    kept: int
    """The mark of what is in Redis, and of the time."""
    rows: tuple[tuple[Any, Any], ...]
    """What is committed."""
    pending: tuple[Pending, ...]
    actors: tuple[Progress, ...]
    left: Budget
    step: int
    path: _Step | None


@dataclass(frozen=True)
class Beginning:
    """A state in which a search begins: what was done before, one after the other, and what is left of it."""

    name: str
    id: str = OWN
    rows: Callable[[], Rows] = dict
    steps: Sequence[Kind | int | Callable[[Search], Sequence[Op]]] = ()
    """Commands; times in ms that go by; or what is done to the world."""
    history: Sequence[Op] = ()


@cache
def _tables() -> Tables:
    """Those of the last search know what became of many a statement."""
    return Tables()


@dataclass
class Search(Exhaustive):
    beginning: Beginning
    kinds: Sequence[Kind]
    budget: Budget = field(default_factory=Budget)
    instead: Mapping[str, Script] = field(default_factory=lambda: OURS)
    most: int = 3_000_000

    def run(self) -> Found:
        with patched():
            return self._run()

    def _run(self) -> Found:
        self.world, self.tables = world_of(self.instead), _tables()
        self.world.now_us = START_MS * 1000
        self._stands: dict[Any, Stand] = {}
        try:
            first = self._begun()
        except Violation as exc:
            return Found(violation=f"at its beginning: {exc}")
        return self._explored(first)

    def _is_over(self, state: _State) -> bool:
        return not state.pending

    # ---- the beginning

    def _begun(self) -> _State:
        self._cache = self.world.cache()
        self.rows: Rows = self.beginning.rows()
        self._history: list[Op] = [*self.beginning.history]
        at_us = -1e11
        for number, step in enumerate(self.beginning.steps, BEGUN):
            if isinstance(step, int):
                self.world.now_us += step * 1000
                at_us += step * 1000
                continue
            ops = step(self) if not isinstance(step, Kind) else step.judged(number)(self.alone(step.make, number))
            at_us += 100
            for op in ops:
                op.begin_us, op.end_us = at_us, at_us + 1
                self._history.append(op)
        self.began_us = self.world.now_us
        actors = tuple(Progress() for _ in self.kinds)
        return _State(self.world.keep(), _ordered(self.rows), (), actors, self.budget, 0, None)

    def alone(self, make: Callable[..., Any], number: int, most: int = 1000) -> Any:
        """Carries a command out by itself, on what is there now, as far as so many answers bring it."""
        so_far: list[Given] = []
        changes: Changes = {}
        start_us = self.world.now_us
        while True:
            stand = stand_of(self._bound(make), so_far, number, start_us)
            if stand.open is None or len(so_far) >= most:
                if isinstance(stand.result, Exception):
                    raise Violation(f"{make}: {stand.result!r}")
                return stand.result
            answer: Any
            if isinstance(stand.open, Sql):
                carried = self._carried(self.rows, changes if stand.open.inside else {}, stand.open)
                changes, answer = carried.changes, carried.answer
            elif isinstance(stand.open, Commit):
                self.rows, changes, answer = committed_with(self.rows, changes), {}, True
            else:
                answer = self.world.execute(stand.open)
            so_far.append(given(answer, self.world.now_us))

    def _bound(self, make: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda env: make(env, TopologyCache("x", self._cache.topology), self.beginning.id)

    def _carried(self, rows: Rows, own: Changes, statement: Sql) -> Any:
        return self.tables.carry_out(
            rows,
            own,
            statement.text.replace(LOCK, ""),
            statement.values,
            counts=statement.counts,
            now_ms=self.world.now_us // 1000,
        )

    # ---- steps

    def _stands_in(self, state: _State) -> list[Stand]:
        return [self._stand(state, number) for number in range(len(self.kinds))]

    def _stand(self, state: _State, number: int) -> Stand:
        progress = state.actors[number]
        if not progress.given:
            self.world.restore(state.kept)
            progress = progress._replace(start_us=self.world.now_us)
        key = number, progress.marks
        stand = self._stands.get(key)
        if stand is None:
            make = self._bound(self.kinds[number].make)
            stand = self._stands[key] = stand_of(make, progress.given, number + 2, progress.start_us)
        return stand

    def _following(self, state: _State, stands: Sequence[Stand]) -> Iterator[_State]:
        for number, (progress, stand) in enumerate(zip(state.actors, stands, strict=True)):
            if progress.is_dead or stand.open is None:
                continue
            if state.left.crashes and progress.given:
                pending = tuple(each._replace(who=SERVER) if each.who == number else each for each in state.pending)
                left = state.left._replace(crashes=state.left.crashes - 1)
                yield self._at(state, number, progress._replace(is_dead=True), "dies")._replace(
                    pending=pending, left=left
                )
            yield from self._answered(state, number, stand.open)
        for place, each in enumerate(state.pending):
            if each.who == SERVER:
                others = state.pending[:place] + state.pending[place + 1 :]
                yield self._later(state, "the server takes it back")._replace(pending=others)
                rows = _ordered(committed_with(dict(state.rows), dict(each.changes)))
                yield self._later(state, "the server commits")._replace(pending=others, rows=rows)
        if state.left.ticks:
            self.world.restore(state.kept)
            then_ms = self.world.now_us // 1000 + TICK_MS
            if all(then_ms - each.began_ms <= MARGIN_MS for each in state.pending):
                self.world.now_us += TICK_MS * 1000
                left = state.left._replace(ticks=state.left.ticks - 1)
                yield self._later(state, "time goes by")._replace(kept=self.world.keep(), left=left)
        if state.left.holds and not state.pending and all(each.given for each in state.actors):
            self.world.restore(state.kept)
            self.world.now_us += HELD_MS * 1000
            left = state.left._replace(holds=state.left.holds - 1)
            yield self._later(state, "all are held for three hours")._replace(kept=self.world.keep(), left=left)

    def _answered(self, state: _State, number: int, request: Request) -> Iterator[_State]:
        self.world.restore(state.kept)
        now_ms = self.world.now_us // 1000
        lossy = state.left.losses > 0
        less = state.left._replace(losses=state.left.losses - 1)
        fates = (LOST, GIVE_UP) if lossy else ()
        if isinstance(request, Sql):
            after = self._with_statement(state, number, request, now_ms)
            if after is None:
                return  # it waits for another
            yield after
            for fate in fates if request.alone and not request.text.lstrip().startswith("SELECT") else ():
                yield self._given(state, number, fate, f"{request} does not arrive, {fate.what}")._replace(left=less)
        elif isinstance(request, Commit):
            (own,) = [each for each in state.pending if each.who == number]
            others = tuple(each for each in state.pending if each.who != number)
            rows = _ordered(committed_with(dict(state.rows), dict(own.changes)))
            yield self._given(state._replace(rows=rows, pending=others), number, True, "COMMIT")
            left_alone = (*others, own._replace(who=SERVER))
            for fate in fates:
                lost = state._replace(pending=left_alone, left=less)
                yield self._given(lost, number, fate, f"COMMIT, {fate.what}")
        else:
            raw, kept = self.world.executed(state.kept, request)
            self.world.restore(kept)
            yield self._given(state._replace(kept=kept), number, raw, f"{shown(request)} → {str(raw)[:80]}")
            for fate in fates:
                done = state._replace(kept=kept, left=less)
                yield self._given(done, number, fate, f"{shown(request)} → {str(raw)[:80]}, {fate.what}")
                unsent = f"{shown(request)} does not arrive, {fate.what}"
                yield self._given(state._replace(left=less), number, fate, unsent)

    def _with_statement(self, state: _State, number: int, request: Sql, now_ms: int) -> _State | None:
        """The state after a statement; None while it waits for a row."""
        own: Changes = {}
        began_ms = now_ms
        if request.inside:
            for each in state.pending:
                if each.who == number:
                    own, began_ms = dict(each.changes), each.began_ms
        others = tuple(each for each in state.pending if each.who != number)
        locked = {row for each in others for row, _ in each.changes}
        carried = self._carried(dict(state.rows), own, request)
        if locked & (carried.changes.keys() - own.keys()) or (LOCK in request.text and locked & carried.met):
            return None
        pending = others
        if carried.changes:
            pending = (*others, Pending(number, _ordered(carried.changes), began_ms))
        text = f"{request} → {str(carried.answer)[:90]}"
        return self._given(state._replace(pending=pending), number, carried.answer, text)

    def _given(self, state: _State, number: int, answer: Any, text: str) -> _State:
        """The state after a command was given an answer, and what follows at once."""
        self.world.restore(state.kept)
        now_us = self.world.now_us
        progress = state.actors[number]
        if not progress.given:
            progress = progress._replace(start_us=now_us, began_at=state.step)
        progress = progress._replace(given=(*progress.given, given(answer, now_us)))
        after = self._at(state, number, progress, text)
        stand = self._stand(after, number)
        if stand.is_over and progress.ended_at < 0:
            return self._with(after, number, progress._replace(ended_at=state.step))
        if isinstance(stand.open, Commit) and all(each.who != number for each in after.pending):
            return self._given(after, number, True, "COMMIT of nothing")
        if isinstance(stand.open, Sql) and stand.open.inside:
            following = self._with_statement(after, number, stand.open, now_us // 1000)
            if following is None:
                raise Violation("two wait for each other")
            return following
        return after

    def _at(self, state: _State, number: int, progress: Progress, text: str) -> _State:
        name = f"{number + 1}. {self.kinds[number].name}"
        return self._with(self._later(state, f"{name}: {text}"), number, progress)

    @staticmethod
    def _with(state: _State, number: int, progress: Progress) -> _State:
        return state._replace(actors=(*state.actors[:number], progress, *state.actors[number + 1 :]))

    @staticmethod
    def _later(state: _State, text: str) -> _State:
        return state._replace(step=state.step + 1, path=_Step(state.path, text))

    def _check(self, state: _State) -> None:
        """A task is in one place, or near and on its way."""
        self.world.restore(state.kept)
        far_ms = self.world.now_us // 1000 + MARGIN_MS + 3_600_000
        is_far = any(row[DUE] > far_ms and not row[GONE] for _, row in state.rows)
        if is_far and state_in_redis(self.world, self.beginning.id) != "gone":
            raise Violation("it is in Redis, and far in the table")

    # ---- keys

    def _key(self, state: _State) -> Any:
        actors = tuple((one.marks, one.is_dead) for one in state.actors)
        return hash((state.kept, state.rows, state.pending, actors, state.left, self._order(state)))

    def _end_key(self, state: _State, stands: Sequence[Stand]) -> Any:
        heard = tuple(repr(self._heard(number, stand)) for number, stand in enumerate(stands) if stand.is_over)
        dead = tuple(one.is_dead for one in state.actors)
        return state.kept, state.rows, heard, dead, self._order(state), state.left

    # ---- the end

    def _heard(self, number: int, stand: Stand) -> list[Op]:
        if self.budget.holds and isinstance(stand.result, Unavailable):
            return []  # what it had read is too old, and it did nothing
        if isinstance(stand.result, Exception) and not isinstance(stand.result, Unanswered | Conflict):
            raise Violation(f"{self.kinds[number].name} raises {stand.result!r}")
        return self.kinds[number].judged(number + 2)(stand.result)

    def _ended(self, state: _State, stands: Sequence[Stand]) -> bool:
        if state.left.holds < self.budget.holds and any(not row[GONE] for _, row in state.rows):
            return False  # no loader came by while Redis remembered: the row is moved anew, as the page says
        world = self.world
        world.restore(state.kept)
        history = [copy(op) for op in self._history]
        is_lossy = state.left.losses < self.budget.losses
        relayed: list[Op] = []
        for number, (progress, stand) in enumerate(zip(state.actors, stands, strict=True)):
            if progress.began_at < 0:
                continue
            kind = self.kinds[number]
            ops = self._heard(number, stand) if stand.is_over else kind.judged(number + 2)(Unanswered(""))
            for op in ops:
                op.begin_us, op.doubtful, op.who = float(progress.began_at), is_lossy, f"{number + 1}. {kind.name}"
                if op.outcome and progress.ended_at >= 0:
                    op.end_us = progress.ended_at + 0.5
                else:
                    op.outcome = ""
                (relayed if op.number == RELAYED else history).append(op)
        if relayed and all(op.number != RELAYED for op in self._history):
            history.append(_one_of(relayed, in_doubt=is_lossy or len(relayed) > 1))
        self.rows = dict(state.rows)
        now_us = world.now_us
        for place, op in enumerate(self._settled_down()):
            at_us = state.step + 1 + place + (0 if not place else world.now_us - now_us)
            op.begin_us, op.end_us = at_us, at_us + 0.5
            history.append(op)
        crashed = self.budget.crashes != state.left.crashes
        unanswered = ((-1e9, 1e12),) if is_lossy or crashed else ()
        result = judged(history, RULES._replace(unanswered=unanswered, skew_us=TICK_MS * 1000.0 * 3))
        if isinstance(result, Violated):
            raise Violation(str(result))
        return isinstance(result, Undecided)

    def handled(self) -> list[Op]:
        """What is due is claimed and acknowledged. Returns what was met of the id."""
        id, world = self.beginning.id, self.world
        _dispatched(world)
        token = f"end{world.now_us}"
        keys, epoch = self._cache.home(id), self._cache.topology.stamp
        call = consume.claim(keys, epoch, {TOPIC: 10}, max=10, lease_ms=LEASE_MS, token=token)
        claimed = call.decode(world.execute(call))
        if not isinstance(claimed, Claim) or id not in claimed.ids:
            return []
        settle = consume.settle(keys, epoch, [SettleAck(id, token)])
        settle.decode(world.execute(settle))
        return [claim_op(claimed, token, id), Op("ack", 0, outcome="done", token=token)]

    def _settled_down(self) -> list[Op]:
        """Brings all that was left to its end. Returns what was met of the id."""
        id, world, get = self.beginning.id, self.world, order("get")
        met = get.judged(50)(self.alone(get.make, 50))
        # A row that Redis has as well is met before Redis forgets that.
        for _ in range(3):
            self.alone(loaded, 50)
            world.now_us += TICK_MS * 1000
        for _ in range(2):
            world.now_us += TICK_MS * 1000 * 6000
            self.alone(partial(loaded, full=True), 50)
            if any(not row[GONE] for row in self.rows.values()):
                raise Violation("it stays in the table")
            met += self.handled()
        met.append(Op("get", 0, outcome=state_in_redis(world, id)))
        return met


DUE, GONE = 1, 8
"""The columns of the due time, and of whether a row has no task any more."""


def state_in_redis(world: World, id: str) -> str:
    keys, raw = world.shards[0].keys, id.encode()
    if raw not in world.shards[0].fields(keys.task):
        return "gone"
    for name, key in (("scheduled", keys.due), ("leased", keys.leased), ("dead", keys.dead)):
        if raw in world.shards[0].scores(key):
            return name
    return "ready"


def _one_of(relayed: Sequence[Op], *, in_doubt: bool) -> Op:
    """The one push that relays carried out together. What is sent again is told "pushed" also where the first send was
    kept out by another task: ``in_doubt`` it may have been carried out, once.
    """
    heard = [op for op in relayed if op.outcome and not in_doubt]
    op = copy(heard[0] if heard else relayed[0])
    op.begin_us = min(each.begin_us for each in relayed)
    if in_doubt:
        op.outcome, op.end_us = "", math.inf
    elif heard:
        op.end_us = min(each.end_us for each in heard)
    op.doubtful = True
    return op


def _ordered(rows: Mapping[Any, Any]) -> tuple[tuple[Any, Any], ...]:
    return tuple(sorted(rows.items(), key=lambda each: each[0]))
