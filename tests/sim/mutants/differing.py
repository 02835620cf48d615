"""Sampled calls that a mutant answers in another way, or after which something else is stored: the fewest that show it.

None of that kills a mutant, as nobody says which answer is right. It helps whoever writes the missing test; and where
thousands of calls show no difference, the mutant may be none.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from shardq.core.scripts import Script
from tests.sim.conformance.comparing import STEPS
from tests.sim.conformance.sampler import Sampler
from tests.sim.conformance.sides import Model
from tests.sim.conformance.steps import Outcome, Step
from tests.sim.mutants.mutant import Mutant
from tests.sim.mutants.subjects import scripts_of
from tests.sim.shrinking import shrunk

_START_MS = 1_700_000_000_000


class _Bent(Model):
    """A model that runs other scripts."""

    def __init__(self, instead: Mapping[str, Script]) -> None:
        super().__init__("valkey9", b"0" * 40)
        self._instead = instead

    def script(self, name: str) -> Script:
        return self._instead.get(name) or super().script(name)


def difference(mutant: Mutant, runs: int) -> str:
    """The steps, and both outcomes of the last. Empty, if so many runs show none."""
    ours, theirs = _Bent({}), _Bent(scripts_of(mutant))
    for seed in range(runs):
        ours.clear()
        theirs.clear()
        sampler = Sampler(random.Random(seed), ours.space, _START_MS)
        done: list[Step] = []
        for step in itertools.islice(itertools.chain(sampler.opening(), sampler.steps()), STEPS):
            done.append(step)
            if ours.carry_out(step) != theirs.carry_out(step):
                return _told(shrunk(done, lambda steps: _outcomes(ours, theirs, steps) is not None), ours, theirs)
    return ""


def _outcomes(ours: Model, theirs: Model, steps: Sequence[Step]) -> tuple[Outcome, Outcome] | None:
    ours.clear()
    theirs.clear()
    for step in steps:
        one, other = ours.carry_out(step), theirs.carry_out(step)
        if one != other:
            return one, other
    return None


def _told(steps: Sequence[Step], ours: Model, theirs: Model) -> str:
    outcomes = _outcomes(ours, theirs, steps)
    assert outcomes is not None
    one, other = outcomes
    told = [f"  {number}. {step}" for number, step in enumerate(steps, 1)]
    for what in ("answer", "messages"):
        if getattr(one, what) != getattr(other, what):
            told += [f"{what}:           {getattr(one, what)!r}", f"{what}, mutant:   {getattr(other, what)!r}"]
    before, after = dict(one.dump), dict(other.dump)
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            told += [f"{key.decode()}:         {before.get(key)!r}", f"{key.decode()}, mutant: {after.get(key)!r}"]
    return "\n".join(told)
