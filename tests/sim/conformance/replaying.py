"""The calls of a simulated run, as steps: what engines really send, in the order in which nodes carried it out."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.conformance.steps import NOW_AT, Step
from tests.sim.model.server import Failure
from tests.sim.runs.plan import FORGETTING, FaultKind, drawn
from tests.sim.runs.running import Executed, run

UNDOING: tuple[FaultKind, ...] = ("lose power", "promote", "split", *FORGETTING)
"""Faults after which a node has another state than its calls have led to. Runs that are replayed have none of them."""


def replayed(seed: int) -> list[Step]:
    """All nodes have keys of their own, so their calls can be made on one server. Those that were refused are left
    out.
    """
    plan = drawn(seed)
    plan = plan.having(faults=[fault for fault in plan.faults if fault.kind not in UNDOING])
    return [
        _step(what)
        for _, _, what in run(plan).story
        if isinstance(what, Executed) and not isinstance(what.answer, Failure)
    ]


def _step(what: Executed) -> Step:
    step = Step(what.script, tuple(what.keys), tuple(what.words))
    if not step.on_server_clock:
        return step
    at = NOW_AT[step.script]
    return replace(step, words=(*step.words[:at], b"%d" % what.now_us, *step.words[at + 1 :]))
