"""Fleets that come and go: workers and consumers are deployed, scaled, and killed at each of their starts."""

from __future__ import annotations

from collections.abc import Mapping

from tests.chaos.nemesis.nemesis import LeftOut, Nemesis, Way, effective
from tests.chaos.plan import Fault, FaultKind, Program, ProgramKind

FLEET: tuple[ProgramKind, ...] = ("quiet", "work", "consume", "drain")
"""Those that take tasks."""

SCALED: tuple[ProgramKind, ...] = ("quiet", "quiet", "work")

CRASHES = 5


def _deploy(nemesis: Nemesis, fault: Fault) -> str:
    """One after the other, as in a rolling deployment; those that another fault is about are left out."""
    count = 0
    current = nemesis.processes.current
    for name in [process.program.name for process in list(current.values()) if process.program.kind in FLEET]:
        try:
            with nemesis.each([name]):
                if (process := current.get(name)) is None:
                    continue
                nemesis.processes.stop(process)
                nemesis.processes.start(process.program)
                count += 1
        except LeftOut:
            continue
        nemesis.lasts(fault.seconds)
    effective(count > 1)
    return f"{count} processes"


def _scale(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.one(["scale"], fault):
        more = [Program(kind, 10 + number) for number, kind in enumerate(SCALED)]
        with nemesis.each(program.name for program in more):
            processes = [nemesis.processes.start(program) for program in more]
            nemesis.lasts(fault.seconds)
            for process in processes:
                nemesis.processes.dismiss(process)
        return f"{len(more)} processes"


def _crash_loop(nemesis: Nemesis, fault: Fault) -> str:
    with nemesis.program(fault, FLEET) as process:
        current = process
        for _ in range(CRASHES):
            nemesis.processes.kill(current)
            current = nemesis.processes.start(process.program)
            nemesis.lasts(fault.seconds)
        return process.who


WAYS: Mapping[FaultKind, Way] = {"deploy": _deploy, "scale": _scale, "crash loop": _crash_loop}
