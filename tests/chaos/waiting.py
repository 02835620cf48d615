"""How long tasks of a quiet topic waited while a worker of it was idle, and nothing else was wrong."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tests.chaos.nemesis.nemesis import Happened
from tests.chaos.program import QUIET
from tests.judge.history import Call
from tests.judge.verdict import Loss

BOUND_S = 8.0
"""What a machine of two cores with twenty processes may take."""

RECOVERS_S = 10.0
"""How long after a fault others may take over what it hit."""

OPENS_US = 1e6
"""A worker waits for tasks so long after it was begun."""


class Waited(NamedTuple):
    handled: int
    """Tasks of the topic."""
    longest_s: float
    """The longest time that one of them waited, and nothing explains."""
    wrong: Sequence[str]


NONE_WAITED = Waited(0, 0.0, ())


Span = tuple[float, float]


def waited(
    calls: Iterable[Call],
    happened: Iterable[Happened],
    losses: Iterable[Loss],
    ended_us: Mapping[str, float],
    over_us: float,
) -> Waited:
    """``ended_us``: when processes were told to end; ``over_us``: when all were."""
    pushes: dict[int, tuple[str, float]] = {}
    given: dict[int, float] = {}
    workers: list[Span] = []
    for call in calls:
        if call.what == "worker" and call.who.startswith(QUIET):
            workers.append((call.begin_us + OPENS_US, min(call.end_us, ended_us.get(call.who, over_us))))
        for id, op in call.ops:
            if not id.startswith(f"{QUIET}/"):
                continue
            if op.kind == "push" and op.outcome == "pushed":
                pushes[op.number] = id, op.end_us + op.delay_us
            elif op.kind == "claim" and not op.lapses:
                given[op.number] = min(given.get(op.number, math.inf), op.end_us)
    excused = [(each.from_us, each.to_us + RECOVERS_S * 1e6) for each in happened if _explains(each)]
    excused += [(loss.from_us, loss.to_us + RECOVERS_S * 1e6) for loss in losses]
    excused += _gaps(workers, over_us)
    longest_us, wrong = 0.0, []
    for number, (id, due_us) in pushes.items():
        if (at_us := given.get(number)) is None:
            continue
        alone_us = _longest(due_us, min(at_us, over_us), excused)
        longest_us = max(longest_us, alone_us)
        if alone_us > BOUND_S * 1e6:
            wrong.append(
                f"{id} was due at {due_us / 1000:.3f} ms and given at {at_us / 1000:.3f} ms: it waited "
                f"{alone_us / 1e6:.1f} s while a worker was idle, and no fault was on"
            )
    return Waited(len(given), longest_us / 1e6, wrong)


def _explains(each: Happened) -> bool:
    """Workers that come and go are no reason to be late; a dispatcher that was ended is one."""
    kind, target = each.fault.kind, each.target
    if kind in ("deploy", "scale", "crash loop"):
        return False
    return kind not in ("kill program", "end program") or target.startswith("dispatch")


def _gaps(spans: Collection[Span], over_us: float) -> list[Span]:
    """The times in which there is none of these."""
    gaps, until_us = [], 0.0
    for from_us, to_us in sorted(spans):
        if from_us > until_us:
            gaps.append((until_us, from_us))
        until_us = max(until_us, to_us)
    return [*gaps, (until_us, max(until_us, over_us))]


def _longest(from_us: float, to_us: float, excused: Iterable[Span]) -> float:
    """The longest time between these in which nothing is excused."""
    longest_us, at_us = 0.0, from_us
    for begin_us, end_us in sorted(excused):
        if begin_us >= to_us:
            break
        longest_us, at_us = max(longest_us, begin_us - at_us), max(at_us, end_us)
    return max(longest_us, to_us - at_us)
