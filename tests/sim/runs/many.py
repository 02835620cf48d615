"""Many runs, one for each number, in several processes."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

from tests.sim.branches.points import instead_of_ours
from tests.sim.branches.reached import Reached, counting
from tests.sim.parallel import Counts, Progress, in_processes
from tests.sim.runs.plan import Chosen, Plan, chosen, drawn
from tests.sim.runs.running import Told, run
from tests.sim.runs.stories import cut_down, story


@dataclass
class Tally(Counts):
    """What runs came to."""

    runs: int = 0
    requests: int = 0
    seconds: float = 0.0
    """Of their own time."""
    faults: int = 0
    ids: int = 0
    calls: int = 0
    deliveries: int = 0
    undecided: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)
    branches: Reached = field(default_factory=Reached)
    """Of scripts and of recovery, where they were counted."""

    def __str__(self) -> str:
        return (
            f"{self.runs:,} runs of {self.seconds / 3600:.1f} h of their time: {self.requests:,} scripts, "
            f"{self.calls:,} calls on {self.ids:,} ids, {self.deliveries:,} deliveries, {self.faults:,} faults; "
            f"{self.undecided:,} ids undecided"
        )


def planned(seed: int, kinds: Sequence[Chosen] = ()) -> Plan:
    """``kinds``: those of which it has one."""
    return chosen(seed, kinds) if kinds else drawn(seed)


def of_seed(seed: int, *, counted: bool = False, kinds: Sequence[Chosen] = ()) -> Tally:
    """What one run comes to. ``counted``: the branches that it takes are counted."""
    with counting() if counted else nullcontext(Reached()) as branches:
        told = run(planned(seed, kinds), instead_of_ours() if counted else None)
    tally = Tally(1, told.requests, told.seconds, len(told.plan.faults), reached=told.reached, branches=branches)
    if told.verdict is not None:
        tally.ids, tally.undecided = told.verdict.ids, told.verdict.undecided
        tally.calls, tally.deliveries = told.verdict.calls.total(), told.verdict.deliveries
    if told.violation:
        tally.failed.append(seed)
    return tally


def carried_out(first: int, *, seconds: float, jobs: int, counted: bool = False, kinds: Sequence[Chosen] = ()) -> Tally:
    """Runs from that number on, until the time is over or one fails. ``counted``: one that fails does not end it."""
    end, progress, tally = time.monotonic() + seconds, Progress(), Tally()
    seeds = itertools.takewhile(lambda seed: seed == first or time.monotonic() < end, itertools.count(first))
    for each in in_processes(partial(of_seed, counted=counted, kinds=kinds), seeds, jobs=jobs):
        tally.add(each)
        progress.show(lambda: f"{tally.runs:,} runs from {first} on, {max(0.0, end - time.monotonic()):.0f} s left")
        if tally.failed and not counted:
            break
    progress.over()
    return tally


def explained(seed: int, *, seconds: float = 60.0, everything: bool = False, kinds: Sequence[Chosen] = ()) -> str:
    """The story of a run that fails, cut down as far as that goes in the time."""
    told: Told = run(planned(seed, kinds))
    if not told.violation:
        return story(told, everything=everything)
    return story(cut_down(told, seconds=seconds) if seconds else told, everything=everything)
