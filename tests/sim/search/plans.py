"""All that is searched, in groups; a search is drawn by its place among those of its group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations_with_replacement

from tests.sim.search.kinds import CHANGES, FEW, KINDS, SCHEDULE, STEADY
from tests.sim.search.searching import Budget, Search
from tests.sim.search.world import MOVING, SIMPLE, Beginning

BEGINNINGS: Sequence[Beginning] = [*SIMPLE, *MOVING]


def _two() -> Iterator[Search]:
    """Any two operations, with a crash, a lost answer, and a change of the epoch."""
    for beginning in BEGINNINGS:
        for pair in combinations_with_replacement(STEADY, 2):
            yield Search(beginning, pair, Budget(1, 1, epochs=1))


def _changes() -> Iterator[Search]:
    """Any operation while the number of shards changes, or tasks are moved, and any two of these."""
    for beginning in BEGINNINGS:
        for pair in combinations_with_replacement(KINDS, 2):
            if any(kind in CHANGES for kind in pair):
                yield Search(beginning, pair, Budget(1, 1))


def _ticks() -> Iterator[Search]:
    """Any two operations, with a lost answer, while a lease runs out and a due time comes."""
    for beginning in BEGINNINGS:
        for pair in combinations_with_replacement(STEADY, 2):
            yield Search(beginning, pair, Budget(0, 1, 1))


def _three() -> Iterator[Search]:
    """Any three of the short operations, with a crash and a lost answer."""
    for beginning in BEGINNINGS:
        for three in combinations_with_replacement(FEW, 3):
            yield Search(beginning, three, Budget(1, 1))


def _schedules() -> Iterator[Search]:
    """The occurrence of a schedule, and what holds it back, with any other operation, and all together."""
    for beginning in BEGINNINGS:
        for one in SCHEDULE:
            for other in (*SCHEDULE, *KINDS):
                yield Search(beginning, [one, other], Budget(1, 1))


GROUPS: dict[str, Callable[[], Iterator[Search]]] = {
    "two": _two,
    "changes": _changes,
    "ticks": _ticks,
    "three": _three,
    "schedules": _schedules,
}
