"""The search: every order in which the requests of some operations can be carried out, with at most so many crashes and
lost answers, from one beginning. States that were met before are not gone on from again.

A state is what is stored, the time, and what each operation was given so far. At each step one request of one operation
is carried out; or its answer is lost, and it is sent again, or its time is over; or it does not even arrive; or the
operation ends there for good. In every state all that must always hold is looked at (``invariants``); in every last one
all that was left is brought to its end, and the judge looks for an order that explains what was heard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest import mock

from shardq.core import topology_recovery
from shardq.core.calls.request import Command
from shardq.core.scripts import Script
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError, Unanswered
from tests.judge.judge import Undecided, Violated, judged
from tests.judge.model import Op
from tests.sim.invariants import Violation
from tests.sim.search.actors import LOST, Given, Stand, given, shown, stand_of
from tests.sim.search.exhaustive import OURS, RULES, Exhaustive, Found, world_of
from tests.sim.search.kinds import TICK_MS, Kind
from tests.sim.search.world import Beginning, settled_down


class Budget(NamedTuple):
    """How often each may happen."""

    crashes: int = 1
    losses: int = 1
    ticks: int = 0
    """Long times that go by at once."""
    epochs: int = 0
    """Changes of a setting, each at once."""


class Progress(NamedTuple):
    """How far one operation has come."""

    given: tuple[Given, ...] = ()
    doubted: frozenset[int] = frozenset()
    is_dead: bool = False
    began_at: int = -1
    """The step of its first request; -1 before that."""
    ended_at: int = -1

    @property
    def marks(self) -> tuple[tuple[int, int, int, bool], ...]:
        """What it was given, as far as that can be compared."""
        return tuple((each.batch, each.request, each.mark, each.doubted) for each in self.given)


@dataclass
class _State:
    """One state, and how it was come to."""

    kept: int
    """The mark of what is stored."""
    actors: tuple[Progress, ...]
    left: Budget
    step: int
    path: _Step | None


class _Step(NamedTuple):
    before: _Step | None
    who: str
    request: Command[Any] | None
    raw: Any
    what: str
    """What became of the answer; without a request: what happened."""

    def __str__(self) -> str:
        if self.request is None:
            return f"{self.who} {self.what}".strip()
        said = "" if self.raw is UNSENT else f" → {_said(self.raw)}"
        return ", ".join(filter(None, (f"{self.who}: {shown(self.request)}{said}", self.what)))


UNSENT = object()
"""The answer to a request that did not arrive."""


@dataclass
class Search(Exhaustive):
    beginning: Beginning
    kinds: Sequence[Kind]
    budget: Budget = field(default_factory=Budget)
    instead: Mapping[str, Script] = field(default_factory=lambda: OURS)
    most: int = 20_000_000
    """States: far more than the largest search has."""

    def run(self) -> Found:
        with mock.patch.object(topology_recovery, "REPAIR_ROUND", 1):
            return self._run()

    def _run(self) -> Found:
        world = self._world = world_of(self.instead)
        self._stands: dict[Any, Stand] = {}
        try:
            self._history = self.beginning.build(world)
        except Violation as exc:
            return Found(violation=f"at its beginning: {exc}")
        self._topology = world.cache().topology
        return self._explored(_State(world.keep(), tuple(Progress() for _ in self.kinds), self.budget, 0, None))

    def _stands_in(self, state: _State) -> list[Stand]:
        return [self._stand(number, each) for number, each in enumerate(state.actors)]

    def _check(self, state: _State) -> None:
        """The world does, after each request."""

    def _is_over(self, state: _State) -> bool:
        return True

    def _stand(self, number: int, progress: Progress) -> Stand:
        """An operation is a function of what it was given, so most stands are known from other states."""
        key = number, progress.marks, progress.doubted
        stand = self._stands.get(key)
        if stand is None:

            def make() -> Any:
                return self.kinds[number].make(TopologyCache("x", self._topology), number + 2)

            stand = self._stands[key] = stand_of(make, progress.given, progress.doubted)
        return stand

    # ---- steps

    def _following(self, state: _State, stands: Sequence[Stand]) -> Iterator[_State]:
        left = state.left
        for number, (progress, stand) in enumerate(zip(state.actors, stands, strict=True)):
            if progress.is_dead or stand.is_over:
                continue
            name = f"{number + 1}. {self.kinds[number].name}"
            if left.crashes and progress.given:
                less = left._replace(crashes=left.crashes - 1)
                died = progress._replace(is_dead=True)
                yield self._after(state, number, died, state.kept, less, (name, None, None, "dies"))
            for request in stand.open:
                yield from self._answered(state, number, progress, stand, request, name)
        if left.ticks:
            self._world.restore(state.kept)
            self._world.now_us += TICK_MS * 1000
            yield self._changed(state, left._replace(ticks=left.ticks - 1), "time goes by")
        if left.epochs:
            self._world.restore(state.kept)
            self._world.change_a_setting()
            yield self._changed(state, left._replace(epochs=left.epochs - 1), "a setting changes")

    def _changed(self, state: _State, left: Budget, what: str) -> _State:
        step = _Step(state.path, "", None, None, what)
        return _State(self._world.keep(), state.actors, left, state.step + 1, step)

    def _answered(
        self, state: _State, number: int, progress: Progress, stand: Stand, request: int, name: str
    ) -> Iterator[_State]:
        call = stand.open[request]
        doubted = request in progress.doubted
        began = progress._replace(began_at=progress.began_at if progress.began_at >= 0 else state.step)
        try:
            raw, kept = self._world.executed(state.kept, call)
        except Violation as exc:
            raise Violation(f"{exc}, after {name}: {shown(call)}") from exc
        answer = given(stand.batch, request, raw, doubted=doubted)
        rest = progress.doubted - {request}
        answered = began._replace(given=_with(began.given, answer), doubted=rest)
        yield self._after(state, number, answered, kept, state.left, (name, call, raw, ""))
        if state.left.losses and not doubted:
            less = state.left._replace(losses=state.left.losses - 1)
            again = began._replace(doubted=progress.doubted | {request})
            lost = given(stand.batch, request, LOST, doubted=False)
            over = began._replace(given=_with(began.given, lost), doubted=rest)
            for following, how in ((again, ""), (over, ", and time is over")):
                yield self._after(state, number, following, kept, less, (name, call, raw, f"which is lost{how}"))
                unsent = name, call, UNSENT, f"lost on its way{how}"
                yield self._after(state, number, following, state.kept, less, unsent)

    def _after(self, state: _State, number: int, progress: Progress, kept: int, left: Budget, step: Any) -> _State:
        if progress.ended_at < 0 and not progress.is_dead and self._stand(number, progress).is_over:
            progress = progress._replace(ended_at=state.step)
        actors = (*state.actors[:number], progress, *state.actors[number + 1 :])
        return _State(kept, actors, left, state.step + 1, _Step(state.path, *step))

    # ---- keys

    def _key(self, state: _State) -> Any:
        actors = tuple((one.marks, one.doubted, one.is_dead) for one in state.actors)
        return hash((state.kept, actors, state.left, self._order(state)))

    def _end_key(self, state: _State, stands: Sequence[Stand]) -> Any:
        heard = tuple(repr(self._heard(number, stand)) for number, stand in enumerate(stands) if stand.is_over)
        dead = tuple(one.is_dead for one in state.actors)
        return state.kept, heard, dead, self._order(state), state.left.losses

    # ---- the end

    def _heard(self, number: int, stand: Stand) -> list[Op]:
        return self.kinds[number].judged(number + 2)(stand.result)

    def _ended(self, state: _State, stands: Sequence[Stand]) -> bool:
        world = self._world
        world.restore(state.kept)
        history = [*self._history]
        is_lossy = state.left.losses < self.budget.losses
        for number, (progress, stand) in enumerate(zip(state.actors, stands, strict=True)):
            kind = self.kinds[number]
            if progress.began_at < 0:
                continue
            ops = kind.judged(number + 2)(stand.result) if stand.is_over else _unheard(kind, number + 2)
            for op in ops:
                op.begin_us = self._at_us(progress.began_at)
                op.doubtful = is_lossy
                op.who = f"{number + 1}. {kind.name}"
                if op.outcome and progress.ended_at >= 0:
                    op.end_us = self._at_us(progress.ended_at) + 0.5
                else:
                    op.outcome = ""
                history.append(op)
        now_us = world.now_us
        for place, payload in enumerate(world.forwarded()):
            arrived = Op("arrive", -1e9, self._at_us(state.step) + place / 100, "arrived", number=int(payload))
            history.append(arrived)
        end = settled_down(world, state.kept)
        # one that died, or gave up, between the last two things that it had to do
        broken_off = (
            kind.moves and (progress.is_dead or isinstance(stand.result, ShardqError))
            for kind, progress, stand in zip(self.kinds, state.actors, stands, strict=True)
        )
        if end.unused and not any(broken_off):
            raise Violation(end.unused)
        for place, op in enumerate(end.met):
            at_us = self._at_us(state.step) + 1 + place + (0 if not place else end.end_us - now_us)
            op.begin_us, op.end_us = at_us, at_us + 0.5
            history.append(op)
        unanswered = ((-1e9, 1e12),) if is_lossy or self.budget.crashes != state.left.crashes else ()
        result = judged(history, RULES._replace(unanswered=unanswered, skew_us=TICK_MS * 1000.0 * self.budget.ticks))
        if isinstance(result, Violated):
            raise Violation(str(result))
        return isinstance(result, Undecided)

    def _at_us(self, step: int) -> float:
        return float(step)


def _unheard(kind: Kind, number: int) -> list[Op]:
    """The operations of one that died: they may have been carried out."""
    return kind.judged(number)(Unanswered(""))


def _with(some: tuple[Given, ...], one: Given) -> tuple[Given, ...]:
    """With one more; those of one batch are in the order of their requests."""
    return tuple(sorted((*some, one), key=lambda each: each[:2]))


def _said(raw: Any) -> str:
    return str(raw)[:80]
