"""Runs of sampled steps on both sides; a run that differs is cut down to the steps that it takes."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from shardq.core.scripts import Script
from tests.sim.conformance.replaying import replayed
from tests.sim.conformance.sampler import Sampler
from tests.sim.conformance.sides import Model, Real
from tests.sim.conformance.steps import Outcome, Step
from tests.sim.model.server import Failure
from tests.sim.shrinking import shrunk

STEPS = 60
"""In a run: states do not grow, and a failing run is short."""

_START_MS = 1_700_000_000_000

_PART = 20
"""Steps that are sent at once. What is drawn meets the model's state, which so is that of the server."""


@dataclass
class Tally:
    """What was compared."""

    calls: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    """Calls that both sides answered by an error."""
    other_orders: int = 0
    """Steps that are the same but for an order that Lua leaves open: Valkey's tables have another one."""

    def __str__(self) -> str:
        rarest = ", ".join(f"{name} {count}" for name, count in self.calls.most_common()[-3:])
        return (
            f"{self.calls.total():,} calls of {len(self.calls)} scripts are the same ({self.failures:,} errors, "
            f"{self.other_orders:,} but for the order of Lua's tables; rarest: {rarest})"
        )


@dataclass
class Difference:
    seed: int
    steps: list[Step]
    ours: Outcome
    theirs: Outcome

    def __str__(self) -> str:
        told = [f"run {self.seed} differs; it takes these steps:"]
        told += [f"  {number}. {step}" for number, step in enumerate(self.steps, 1)]
        for what in ("answer", "messages"):
            ours, theirs = getattr(self.ours, what), getattr(self.theirs, what)
            if ours != theirs:
                told += [f"{what} of the model:  {ours!r}", f"{what} of the server: {theirs!r}"]
        ours, theirs = dict(self.ours.dump), dict(self.theirs.dump)
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                told += [
                    f"{key.decode()} of the model:  {ours.get(key)!r}",
                    f"{key.decode()} of the server: {theirs.get(key)!r}",
                ]
        return "\n".join(told)


class Comparison:
    """A model and a real server of one kind, side by side. ``instead``: scripts of the model in place of ours."""

    def __init__(self, kind: str, real: Real, instead: Mapping[str, Script] | None = None) -> None:
        self._kind = kind
        self._real = real
        self._model = Model(kind, real.run_id, instead)
        self._orders = kind.startswith("valkey")
        self.tally = Tally()

    def again(self) -> Comparison:
        """A new model, with the same server."""
        return Comparison(self._kind, self._real)

    def run(self, seed: int) -> Difference | None:
        """One run with explicit instants, the same for the same seed."""
        sampler = Sampler(random.Random(seed), self._model.space, _START_MS)
        return self._carried_out(seed, itertools.islice(itertools.chain(sampler.opening(), sampler.steps()), STEPS))

    def replay(self, seed: int) -> Difference | None:
        """The calls of a simulated run, with its instants."""
        return self._carried_out(seed, replayed(seed))

    def _carried_out(self, seed: int, steps: Iterable[Step]) -> Difference | None:
        self._clear()
        done: list[Step] = []
        part: list[tuple[Step, Outcome]] = []
        for step in steps:
            part.append((step, self._model.carry_out(step)))
            if len(part) == _PART or step.denied:
                # a step in which a command is denied is alone, behind what comes before it
                for some in (part[:-1], part[-1:]) if step.denied else (part,):
                    if (difference := self._compared(seed, done, some)) is not None:
                        return difference
                part = []
        return self._compared(seed, done, part)

    def run_on_server_clock(self, seed: int) -> Difference | None:
        """One run in which scripts read the server's clock. Its seed does not give it again."""
        self._clear()
        sampler = Sampler(random.Random(seed), self._model.space, self._real.now_us() // 1000, server_clock=True)
        done: list[Step] = []
        for step in itertools.islice(itertools.chain(sampler.opening(), sampler.steps()), STEPS // 2):
            step = replace(step, full=False, read_only=False, denied="")
            done.append(step)
            theirs, now_us = self._real.told(step)
            ours = self._model.carry_out(step, now_us)
            if step.on_server_clock:
                # what tells the clock has a line of its own
                theirs = _with_line_of(ours, theirs)
            if not self._same(step, ours, theirs):
                return Difference(seed, done, ours, theirs)
        return None

    def _clear(self) -> None:
        self._model.clear()
        self._real.clear()

    def _compared(self, seed: int, done: list[Step], part: list[tuple[Step, Outcome]]) -> Difference | None:
        theirs = self._real.carry_out([step for step, _ in part])
        for (step, ours), their in zip(part, theirs, strict=True):
            done.append(step)
            if not self._same(step, ours, their):
                return self._shrunk(seed, done)
        return None

    def _same(self, step: Step, ours: Outcome, theirs: Outcome) -> bool:
        if step.script:
            self.tally.calls[step.script] += 1
            self.tally.failures += isinstance(ours.answer, Failure)
        if isinstance(ours.answer, Failure) and ours.answer.line == 0:
            theirs = _with_line_of(ours, theirs)
        if ours == theirs:
            return True
        if self._orders and _unordered(step, ours) == _unordered(step, theirs):
            self.tally.other_orders += 1
            return True
        return False

    def _outcomes(self, steps: Sequence[Step]) -> tuple[Outcome, Outcome] | None:
        """What the last of these steps comes to; None where both sides do the same."""
        self._clear()
        for step in steps:
            ours = self._model.carry_out(step)
            (theirs,) = self._real.carry_out([step])
            if not self._same(step, ours, theirs):
                return ours, theirs
        return None

    def _shrunk(self, seed: int, steps: list[Step]) -> Difference:
        outcomes = self._outcomes(steps)
        assert outcomes is not None, f"run {seed} differs, and does not when it is repeated"
        steps = shrunk(steps, lambda fewer: bool(fewer) and self._outcomes(fewer) is not None)
        outcomes = self._outcomes(steps)
        assert outcomes is not None
        return Difference(seed, steps, *outcomes)


def _with_line_of(ours: Outcome, theirs: Outcome) -> Outcome:
    """The same, where both are errors that ended a script, as if it had been at our line."""
    if not isinstance(ours.answer, Failure) or not isinstance(theirs.answer, Failure) or theirs.answer.line is None:
        return theirs
    return replace(theirs, answer=replace(theirs.answer, line=ours.answer.line))


_PARCEL = re.compile(rb"[^|]*\|[^|]*\|(?:due|first|dead)\|[^|]*\|(\d+)\|(\d+)\|")


def _unordered(step: Step, outcome: Outcome) -> Any:
    """The same for outcomes that differ in what depends on the order of a table: the fields of maps in a record's head,
    which push packs anew, and the order in which topics are listed.
    """
    answer = _headed(outcome.answer)
    if step.script == "peek" and isinstance(answer, list) and len(answer) > 12:
        for name in (b"dispatched", b"died"):
            at = answer.index(name) + 1
            answer[at] = _pairs(answer[at])
    return answer, outcome.messages, _headed(outcome.dump)


def _pairs(flat: list[Any]) -> list[Any]:
    return sorted(zip(flat[::2], flat[1::2], strict=True))


def _headed(value: Any) -> Any:
    if isinstance(value, list):
        return [_headed(each) for each in value]
    if isinstance(value, tuple):
        return tuple(_headed(each) for each in value)
    if not isinstance(value, bytes):
        return value
    parcel = _PARCEL.match(value)
    if parcel:
        at = parcel.end() + int(parcel[1]) + int(parcel[2])
        return value[:at], _headed(value[at:])
    if value[:1] == b"{":
        with contextlib.suppress(ValueError):
            return json.loads(value)
    if value[:1] and 0x18 <= value[0] < 0x20 and len(value) > 2:
        end = 3 + int.from_bytes(value[1:3])
        try:
            head = msgspec.msgpack.decode(value[3:end], strict=False)
        except (msgspec.DecodeError, ValueError, TypeError):
            head = sorted(value[3:end])  # texts that are not UTF-8: Lua takes them
        return value[:3], head, value[end:]
    return value
