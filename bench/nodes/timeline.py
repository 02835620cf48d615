"""Arrivals of tasks and their lateness, as figures and as a series over time. It does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from bench.figures import percentiles

LATE_MS = 100.0
"""People begin to notice such a delay."""

STEP_S = 0.1
"""The length of a step."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One task. Instants are in seconds from some event."""

    due_s: float
    at_s: float

    @property
    def late_ms(self) -> float:
        return (self.at_s - self.due_s) * 1000


@dataclass(frozen=True, slots=True)
class Lateness:
    tasks: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    later_than_100_ms: float
    """The share of the tasks."""
    gap_s: float
    """The longest interval in which none came."""


@dataclass(frozen=True, slots=True)
class Step:
    """The tasks that were due within one step of a series. The step begins at ``s``."""

    s: float
    tasks: int
    p50_ms: float
    max_ms: float


def lateness(arrivals: Iterable[Arrival]) -> Lateness | None:
    """Returns None when nothing came.

    >>> lateness([Arrival(0.0, 0.001), Arrival(1.0, 1.5)])
    Lateness(tasks=2, p50_ms=1.0, p99_ms=500.0, max_ms=500.0, later_than_100_ms=0.5, gap_s=1.499)
    """
    ordered = sorted(arrivals, key=lambda arrival: arrival.at_s)
    if not ordered:
        return None
    late = [round(arrival.late_ms, 3) for arrival in ordered]
    found = percentiles(late)
    return Lateness(
        tasks=len(late),
        p50_ms=found["p50"],
        p99_ms=found["p99"],
        max_ms=found["max"],
        later_than_100_ms=sum(ms > LATE_MS for ms in late) / len(late),
        gap_s=round(max((b.at_s - a.at_s for a, b in pairwise(ordered)), default=0.0), 4),
    )


def series(arrivals: Sequence[Arrival]) -> list[Step]:
    """Returns the steps by due time. A late task then shows in the step in which it was due."""
    bins: dict[int, list[float]] = {}
    for arrival in arrivals:
        bins.setdefault(int(arrival.due_s // STEP_S), []).append(round(arrival.late_ms, 2))
    steps = []
    for number, late in sorted(bins.items()):
        found = percentiles(late)
        steps.append(Step(round(number * STEP_S, 3), len(late), found["p50"], found["max"]))
    return steps
