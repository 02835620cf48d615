"""What all searches are: they go through every state that follows from the first one, each once, look at all that must
always hold, and have each last state judged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardq.core.scripts import Script
from tests.judge.model import Rules
from tests.sim.invariants import Violation
from tests.sim.search.kinds import LIMIT
from tests.sim.search.world import World

RULES = Rules(attempts=LIMIT, lease_us=0.0)

OURS: Mapping[str, Script] = {}
"""Scripts as they are, none in place of another."""

_last: list[World] = []
"""The world of the last search: to make another one each time would take longer than many a search."""


def world_of(instead: Mapping[str, Script]) -> World:
    """An empty world."""
    if not _last or _last[0].instead is not instead:
        _last[:] = [World(instead)]
    _last[0].forget()
    return _last[0]


@dataclass
class Found:
    """What a search came to."""

    states: int = 0
    ends: int = 0
    undecided: int = 0
    violation: str = ""


class Exhaustive(ABC):
    """A search of ``kinds`` from a ``beginning``, of so many states at ``most``.

    A state has ``actors``, which tell how far each operation has come; the number of its ``step``; and its ``path``:
    the last step, as a text, and what was before it.
    """

    beginning: Any
    kinds: Sequence[Any]
    most: int

    @abstractmethod
    def _stands_in(self, state: Any) -> Sequence[Any]:
        """Where each operation stands."""

    @abstractmethod
    def _check(self, state: Any) -> None:
        """Raises Violation where something does not hold."""

    @abstractmethod
    def _following(self, state: Any, stands: Sequence[Any]) -> Iterable[Any]:
        """The states that may come next."""

    @abstractmethod
    def _is_over(self, state: Any) -> bool:
        """False while something is under way that belongs to no operation."""

    @abstractmethod
    def _key(self, state: Any) -> Hashable:
        """The same for states from which the same can follow: steps count only as far as they order operations."""

    @abstractmethod
    def _end_key(self, state: Any, stands: Sequence[Any]) -> Hashable:
        """The same for last states that are judged alike."""

    @abstractmethod
    def _ended(self, state: Any, stands: Sequence[Any]) -> bool:
        """Judges a last state. Returns True if the judge can't decide."""

    def _explored(self, first: Any) -> Found:
        found = Found()
        seen, left, ends = {self._key(first)}, [first], set[Hashable]()
        while left:
            state = left.pop()
            found.states += 1
            if found.states > self.most:
                found.violation = f"there are more than {self.most:,} states"
                return found
            try:
                stands = self._stands_in(state)
                self._check(state)
                following = list(self._following(state, stands))
                done = all(one.is_dead or stand.is_over for one, stand in zip(state.actors, stands, strict=True))
                if done and self._is_over(state):
                    key = self._end_key(state, stands)
                    if key not in ends:
                        ends.add(key)
                        found.ends += 1
                        found.undecided += self._ended(state, stands)
                elif not following:
                    raise Violation("no operation can go on")
            except Violation as exc:
                found.violation = self._told(state, str(exc))
                return found
            for each in following:
                if (key := self._key(each)) not in seen:
                    seen.add(key)
                    left.append(each)
        return found

    @staticmethod
    def _order(state: Any) -> frozenset[tuple[int, int]]:
        """Which operation had ended before which one began."""
        return frozenset(
            (one, other)
            for one, first in enumerate(state.actors)
            for other, second in enumerate(state.actors)
            if 0 <= first.ended_at < (second.began_at if second.began_at >= 0 else state.step)
        )

    def _told(self, state: Any, violation: str) -> str:
        lines: list[str] = []
        path = state.path
        while path is not None:
            lines.append(str(path))
            path = path.before
        told = [f"{', '.join(kind.name for kind in self.kinds)}, from {self.beginning.name!r}:"]
        told += [f"  {number}. {line}" for number, line in enumerate(reversed(lines), 1)]
        return "\n".join([*told, violation])
