"""A short round on one server: real programs, some of them killed, and every call judged."""

from __future__ import annotations

import pytest

from tests.chaos.plan import QUIET, drawn
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
