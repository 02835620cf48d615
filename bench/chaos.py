"""The files of ``python -m tests.chaos`` and ``python -m tests.chaos soak``, as they are written there and read by the
report.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

Counts = dict[str, int]

VIOLATIONS = {
    "lost": "acknowledged and gone, and nothing explains it",
    "early, or doubled": "given before its due time, or again, and nothing explains it",
    "other": "answers, late calls, ends of programs and rests that nothing explains",
}


class RoundRecord(msgspec.Struct):
    seed: int
    ground: str
    faults: int
    tasks: int
    plain: int
    undecided: int
    deliveries: int
    late_s: dict[str, float]
    seconds: dict[str, float]
    clocks: bool
    violations: Counts
    """By kind: see ``VIOLATIONS``."""
    wrong: list[str]
    """The first of them in words."""
    broken: list[str]


class Chaos(msgspec.Struct):
    """What a run of many rounds came to."""

    facts: dict[str, str]
    rounds: list[RoundRecord] = []
    faults: Counts = {}
    """By kind."""
    faults_of: dict[str, Counts] = {}
    """By ground, and kind."""
    left_out: Counts = {}
    """What was planned and not done, or done without effect, with the reason."""
    doubled: Counts = {}
    """Deliveries beyond the first of a task, by what explains them."""
    lost: Counts = {}
    """Tasks that were accepted and never came, by what explains it."""
    outcomes: Counts = {}
    """What was answered, by call and answer."""
    errors: Counts = {}
    unjudged: int = 0
    took_s: float = 0.0
    """All of it."""

    @property
    def tasks(self) -> int:
        return sum(each.tasks for each in self.rounds)

    @property
    def deliveries(self) -> int:
        return sum(each.deliveries for each in self.rounds)

    @property
    def violations(self) -> int:
        return sum(sum(each.violations.values()) for each in self.rounds)

    def violations_of(self, kind: str) -> int:
        return sum(each.violations.get(kind, 0) for each in self.rounds)


class Series(msgspec.Struct):
    """One figure over time. ``kind`` chooses its bound."""

    kind: str
    name: str
    points: list[tuple[float, float]] = []
    """Seconds since the beginning, and the value."""

    def thinned(self, period_s: float) -> Series:
        """The first point of each period: enough for a plot."""
        firsts = {point[0] // period_s: point for point in reversed(self.points)}
        return Series(self.kind, self.name, sorted(firsts.values()))


class Bound(msgspec.Struct, frozen=True):
    """A series is flat if it grows, from the end of the warm-up to the end, by no more than either of these."""

    relative: float
    """Of its median."""
    absolute: float
    unit: str


class Flat(msgspec.Struct):
    kind: str
    name: str
    median: float
    growth: float
    """From the end of the warm-up to the end, by the median slope between any two samples."""
    bound: float
    is_flat: bool


class Soak(msgspec.Struct):
    """What a long run under steady load came to."""

    facts: dict[str, str]
    ground: str
    seconds: float
    sample_s: float
    warm_up_s: float
    per_s: float
    bounds: dict[str, Bound]
    series: list[Series] = []
    flat: list[Flat] = []
    wrong: list[str] = []
    tasks: int = 0
    """Dispatched until the end, as the shards count them."""

    def of(self, kind: str) -> list[Series]:
        return [each for each in self.series if each.kind == kind]


def write(record: Chaos | Soak, file: Path) -> None:
    """Replaces the file in one step: a run that is killed leaves what it had."""
    new = file.with_suffix(".new")
    new.write_bytes(msgspec.json.encode(record) + b"\n")
    new.replace(file)
