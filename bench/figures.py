"""What a suite yields: figures, and the arithmetic that makes them. Pure."""

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
    """In the same unit: p50, p99, …"""
    reference: str = ""
    """What to hold it against: another figure of the same run, or what is aimed at."""
    ratio: float | None = None
    """The value, divided by that of the other figure."""
    at: Mapping[str, float | str] = field(default_factory=dict)
    """Where on a curve it lies: how many shards, pending tasks, bytes, …"""
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """How something went over time: columns of equal length, ``s`` first."""


@dataclass(slots=True)
class Spent:
    """What one piece of work took. Filled in by ``Stand.metering``."""

    wall_s: float = 0.0
    client_s: float = 0.0
    """CPU of this process, all threads."""
    server_s: float = 0.0
    """CPU of all masters."""

    def add(self, other: Spent) -> None:
        self.wall_s += other.wall_s
        self.client_s += other.client_s
        self.server_s += other.server_s


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """The nearest value that at most so many of all exceed.

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
    """The upper one of an even number: a value that was measured."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]


def lateness(
    name: str, late_ms: Sequence[float], *, expected: int, aim: str, at: Mapping[str, float | str] | None = None
) -> Figure:
    """The figure of so many latenesses; says when there are fewer than expected, or some below 0."""
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
    """The round of median duration."""
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
