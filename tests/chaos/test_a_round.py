"""Short rounds: real programs, servers and programs that are broken, and every call judged."""

from __future__ import annotations

import msgspec
import pytest

from tests.chaos.plan import QUIET, Fault, FaultKind, ProgramKind, drawn
from tests.chaos.rounds import carried_out, put_away


@pytest.mark.slow
def test_a_short_round_is_right() -> None:
    plan = drawn(
        3, "aof", seconds=5.0, every_s=0.7, per_s=500.0, kinds=QUIET,
        only=("kill program", "cut", "cut in a reply", "kill server", "flush scripts"),
    )  # fmt: skip
    told = carried_out(plan)
    put_away(told, keep=False)
    assert told.wrong == []
    assert told.broken == []
    assert sum(told.faults.values()) >= 2, told.left_out
    assert told.tasks > 500
    assert told.verdict.ids > 10
    assert told.verdict.outcomes["ack done"] > 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "seconds"),
    [
        (("lose tail", "deploy"), 0.5),
        (("restore older", "scale"), 1.0),
        (("flush", "crash loop"), 0.3),
        (("lead elsewhere",), 1.0),
    ],
    ids=["lose tail", "restore older", "flush", "lead elsewhere"],
)
def test_servers_that_forget_and_fleets_that_come_and_go(kinds: tuple[FaultKind, ...], seconds: float) -> None:
    programs: list[ProgramKind] = ["dispatch", "flow", "drain", "produce", "consume", "operate", "quiet", "quiet"]
    if "lead elsewhere" not in kinds:
        programs.append("administer")
    plan = drawn(1, "aof", seconds=5.0, per_s=300.0, only=kinds, kinds=programs)
    faults = tuple(Fault(1.5 - 0.5 * place, kind, 1, seconds) for place, kind in enumerate(kinds))
    told = carried_out(msgspec.structs.replace(plan, faults=faults[::-1]))
    put_away(told, keep=False)
    assert told.wrong == []
    assert told.broken == []
    assert set(told.faults) == set(kinds), told.left_out
    assert told.verdict.outcomes["ack done"] > 100
