"""What servers forgot, and which tasks stay owed all the same.

A task whose push was safe before the fault (on the disk; in the snapshot), or came after it, is handled at least once,
and never early. It may run twice: the server has it again, while another one, or a process, knows that it is done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from typing import NamedTuple

from tests.judge.history import Call
from tests.judge.verdict import Facts, concerns

REMOVED = {"ack": "done", "cancel": "cancelled"}
"""What removes a task, by its answer."""


class Forgotten(NamedTuple):
    """A server has lost all that it did from one instant to another."""

    from_us: float
    at_us: float
    shards: frozenset[int] | None
    """Those that it serves; None: all."""
    had: Collection[str] | None = None
    """The ids that it came back with, where it lost what was on its disk, too, and others did not: a task that was
    moved to it since then is lost. None: nothing that was moved is."""


class _Life:
    """When an id was heard of first, pushed last, and removed."""

    def __init__(self) -> None:
        self.first_us = math.inf
        self.pushed_us = 0.0
        self.removed_us: list[float] = []

    def is_over(self, at_us: float) -> bool:
        """True if it was removed by then, and not pushed again."""
        return any(self.pushed_us < removed_us <= at_us for removed_us in self.removed_us)


def tell(facts: Facts, calls: Iterable[Call], forgotten: Collection[Forgotten]) -> None:
    """Tells the judge of which tasks only that is judged which is owed."""
    facts.owing = True
    lives = _lives(calls) if forgotten else {}
    for each in forgotten:
        for id, life in lives.items():
            if (
                life.first_us > each.at_us
                or life.is_over(each.from_us)
                or not concerns(each.shards, id, facts.shard_counts)
            ):
                continue
            facts.unguarded.add(id)
            if each.had is not None and id not in each.had:
                facts.unmoored.add(id)


def _lives(calls: Iterable[Call]) -> dict[str, _Life]:
    lives: dict[str, _Life] = {}
    pushed_us: dict[int, float] = {}
    named: list[tuple[int, _Life]] = []
    for call in calls:
        for id, op in call.ops:
            if not id:
                pushed_us[op.number] = op.begin_us
                continue
            life = lives.setdefault(id, _Life())
            life.first_us = min(life.first_us, op.begin_us)
            if op.kind in REMOVED and op.outcome == REMOVED[op.kind]:
                life.removed_us.append(op.end_us)
            elif op.kind == "push":
                life.pushed_us = max(life.pushed_us, op.begin_us)
            elif op.kind == "claim":
                named.append((op.number, life))
    for number, life in named:
        life.first_us = min(life.first_us, pushed_us.get(number, math.inf))
    return lives
