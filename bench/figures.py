"""Suites yield figures. This module holds them and their arithmetic; it does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the report."""

    name: str
    value: float
    unit: str
    percentiles: Mapping[str, float] = field(default_factory=dict)
    """In the same unit, by name: p50, p99, …"""
    reference: str = ""
    """Another figure of the same run, or the aim, for comparison."""
    ratio: float | None = None
    """The value divided by that of the other figure."""
    at: Mapping[str, float | str] = field(default_factory=dict)
    """The place on a curve: number of shards, pending tasks, bytes, …"""
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The course over time: columns of equal length, ``s`` first."""


@dataclass(slots=True)
class Spent:
    """The time and CPU of one piece of work. ``Stand.metering`` fills it in."""

    wall_s: float = 0.0
    client_s: float = 0.0
    """CPU of this process, all threads together."""
    server_s: float = 0.0
    """CPU of all masters together."""

    def add(self, other: Spent) -> None:
        self.wall_s += other.wall_s
        self.client_s += other.client_s
        self.server_s += other.server_s


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Returns the values at p50 and p99 by nearest rank, and the greatest.

    >>> percentiles([3.0, 1.0, 2.0])
    {'p50': 2.0, 'p99': 3.0, 'max': 3.0}
    """
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "p50": ordered[min(last, -(-len(ordered) * 50 // 100) - 1)],
        "p99": ordered[min(last, -(-len(ordered) * 99 // 100) - 1)],
        "max": ordered[last],
    }


def median(values: Iterable[float]) -> float:
    """Returns the median; for an even number of values the upper one of the middle two, which was measured."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def lateness(
    name: str, late_ms: Sequence[float], *, expected: int, aim: str, at: Mapping[str, float | str] | None = None
) -> Figure:
    """Returns the figure of these latenesses. Its reference tells of missing tasks and of tasks that came early."""
    if not late_ms:
        raise RuntimeError(f"{name}: none of {expected} tasks came")
    found = percentiles(late_ms)
    remarks = [aim] if aim else []
    if len(late_ms) != expected:
        remarks.append(f"only {len(late_ms)} of {expected} were seen")
    if early := sum(late < 0 for late in late_ms):
        remarks.append(f"{early} EARLY")
    return Figure(name, found["p50"], "ms", found, "; ".join(remarks), at=at or {})


def middle(rounds: Sequence[Spent]) -> Spent:
    """Returns the round of median duration."""
    return sorted(rounds, key=lambda spent: spent.wall_s)[len(rounds) // 2]


def rate(
    name: str,
    tasks: int,
    spent: Spent,
    *,
    reference: str = "",
    ratio: float | None = None,
    at: Mapping[str, float | str] | None = None,
) -> Figure:
    return Figure(name, tasks / spent.wall_s, "tasks/s", reference=reference, ratio=ratio, at=at or {})


def client_cost(name: str, tasks: int, spent: Spent, *, reference: str = "") -> Figure:
    return Figure(f"{name}: client CPU", spent.client_s / tasks * 1e6, "µs/task", reference=reference)


def server_cost(name: str, tasks: int, spent: Spent) -> Figure:
    return Figure(
        f"{name}: server CPU",
        spent.server_s / tasks * 1e6,
        "µs/task",
        reference=f"busy {spent.server_s / spent.wall_s:.0%} of the time",
    )
