"""Many searches, in several processes. A search is named by its group and its number in it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NamedTuple

from tests.sim.branches.points import instrumented
from tests.sim.branches.reached import Reached, counting
from tests.sim.far import plans as of_far
from tests.sim.far.searching import Search as FarSearch
from tests.sim.parallel import Counts, Progress, in_processes
from tests.sim.search import plans
from tests.sim.search.searching import Search

GROUPS: dict[str, Callable[[], Iterator[Search | FarSearch]]] = {**plans.GROUPS, **of_far.GROUPS}


class Place(NamedTuple):
    group: str
    number: int


@dataclass
class Tally(Counts):
    searches: int = 0
    states: int = 0
    ends: int = 0
    undecided: int = 0
    violations: list[str] = field(default_factory=list)
    branches: Reached = field(default_factory=Reached)
    """Of scripts and of recovery, where they were counted."""

    def __str__(self) -> str:
        return (
            f"{self.searches:,} searches, {self.states:,} states, {self.ends:,} ends, {self.undecided:,} of them "
            f"undecided, {len(self.violations)} violations"
        )


@cache
def _searches(group: str) -> Sequence[Search | FarSearch]:
    return list(GROUPS[group]())


def of_place(place: Place, *, counted: bool = False) -> Tally:
    """What one search comes to. ``counted``: the branches that it takes are counted."""
    search = _searches(place.group)[place.number]
    with counting() if counted else nullcontext(Reached()) as branches:
        found = (replace(search, instead=instrumented()) if counted else search).run()
    violations = [f"{place.group} {place.number}: {found.violation}"] if found.violation else []
    return Tally(1, found.states, found.ends, found.undecided, violations, branches)


def places(groups: Sequence[str], *, every: int = 1, first: int = 0) -> list[Place]:
    """Those of some groups; or one in so many of them, from the first one on."""
    all_of_them = [Place(group, number) for group in groups for number in range(len(_searches(group)))]
    return all_of_them[first % every :: every]


def carried_out(some: Sequence[Place], *, jobs: int, seconds: float | None = None, counted: bool = False) -> Tally:
    """Searches all of these, or as many as the time allows; until one finds a violation. ``counted``: that does not
    end it.
    """
    end = None if seconds is None else time.monotonic() + seconds
    progress, tally = Progress(), Tally()
    left = itertools.takewhile(lambda _: end is None or time.monotonic() < end, some)
    for each in in_processes(partial(of_place, counted=counted), left, jobs=jobs):
        tally.add(each)
        progress.show(lambda: f"{tally.searches:,} of {len(some):,} searches, {tally.states:,} states")
        if tally.violations and not counted:
            break
    progress.over()
    return tally
