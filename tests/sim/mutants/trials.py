"""Simulated runs and searches that are tried on a mutant, those first that are known to come by its place.

A survey tells once what each of them reaches: of scripts the branches (``branches``), of modules the lines. It is made
anew when scripts, product or simulation have changed.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import coverage
import msgspec

from tests.sim.branches.points import instead_of_ours, instrumented, points
from tests.sim.branches.reached import ROOT
from tests.sim.model import server
from tests.sim.runs.plan import drawn
from tests.sim.runs.running import run
from tests.sim.search.kinds import KINDS
from tests.sim.search.searching import Budget, Search
from tests.sim.search.world import MOVING, SIMPLE

MOST_STATES = 4000
"""A search that has more is not one of the small ones."""

_TOO_MANY = "there are more than"


class Trial(NamedTuple):
    """One search or one run, by which a mutant may die."""

    beginning: str
    """Empty for a run."""
    kinds: tuple[str, ...]
    seed: int

    def __str__(self) -> str:
        return f"search: {', '.join(self.kinds)}, from {self.beginning!r}" if self.kinds else f"run {self.seed}"

    def violation(self, *, counted: bool = False) -> str:
        """Carries it out on the scripts as they are. Returns what is wrong, if anything is. ``counted``: they tell
        their branches.
        """
        try:
            if self.kinds:
                wrong = self._search(instrumented() if counted else {})
            else:
                wrong = run(drawn(self.seed), instead_of_ours() if counted else None).violation
        except Exception as exc:  # noqa: BLE001  a mutant may break anything
            return f"{type(exc).__name__}: {exc}"
        return "" if _TOO_MANY in wrong else wrong

    def _search(self, instead: Any) -> str:
        beginning = next(each for each in (*SIMPLE, *MOVING) if each.name == self.beginning)
        kinds = [next(kind for kind in KINDS if kind.name == name) for name in self.kinds]
        return Search(beginning, kinds, Budget(crashes=0, losses=1), instead=instead, most=MOST_STATES).run().violation


class Known(msgspec.Struct):
    """What a trial takes and reaches."""

    trial: Trial
    cpu_s: float
    reached: set[str]
    """Names of branches, and ``MODULE:LINE``."""


def searches() -> Iterator[Trial]:
    """A sample of the searches: each two operations together, and each from several beginnings."""
    pairs = itertools.combinations_with_replacement([kind.name for kind in KINDS], 2)
    beginnings = itertools.cycle(each.name for each in (*SIMPLE, *MOVING))
    for pair, beginning in zip(pairs, beginnings, strict=False):
        yield Trial(beginning, pair, 0)


def runs(first: int = 0, most: int = 1000) -> Iterator[Trial]:
    return (Trial("", (), seed) for seed in range(first, most))


def surveyed(trials: Iterable[Trial], modules: Sequence[str], most_s: float) -> list[Known]:
    """What each of these trials reaches, until so much time of the processor is spent. Those that find a fault in the
    product as it is, and those that take long, are left out.
    """
    found: list[Known] = []
    end = time.process_time() + most_s
    for trial in trials:
        began = time.process_time()
        if began > end:
            break
        with _Watched(modules) as reached:
            violation = trial.violation(counted=True)
        taken = time.process_time() - began
        if not violation and taken < 5.0:
            found.append(Known(trial, taken, reached()))
    return found


class _Watched:
    def __init__(self, modules: Sequence[str]) -> None:
        self._files = {str(ROOT / module): module for module in modules}
        self._numbers: set[int] = set()
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, concurrency="greenlet", include=list(self._files), messages=False
        )

    def __enter__(self) -> Callable[[], set[str]]:
        self._before, server.reached = server.reached, self._numbers.add
        if self._files:
            self._coverage.start()
        return self._reached

    def __exit__(self, *_: object) -> None:
        if self._files:
            self._coverage.stop()
        server.reached = self._before

    def _reached(self) -> set[str]:
        reached = {points()[number].name for number in self._numbers}
        if self._files:
            data = self._coverage.get_data()
            for file, module in self._files.items():
                reached |= {f"{module}:{line}" for line in data.lines(file) or ()}
        return reached


@dataclass
class Trials:
    """All that were surveyed."""

    known: list[Known]

    def of(self, place: str) -> list[Trial]:
        """Those that come by a place, the cheapest first. ``FILE: `` is every place of a file that has branches."""
        if place.endswith(": "):
            known = [each for each in self.known if any(name.startswith(place) for name in each.reached)]
            known = known or self.known
        else:
            known = [each for each in self.known if place in each.reached]
        return [each.trial for each in sorted(known, key=lambda each: each.cpu_s)]


def tried(trials: Iterable[Trial], cpu_s: float) -> str:
    """Tries one after the other, for so much time of the processor. Returns what the first says that finds a fault."""
    end = time.process_time() + cpu_s
    for trial in trials:
        if time.process_time() > end:
            break
        if violation := trial.violation():
            return f"{trial}: {violation}"
    return ""
