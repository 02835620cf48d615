"""The story of a run that shows a fault: its plan, cut down as far as it goes, and what happened, as lines."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from shardq.core.scripts import Script
from tests.sim.runs.plan import Plan
from tests.sim.runs.running import Executed, Told, run
from tests.sim.shrinking import shrunk

LINES = 80
"""Those of a story, at most; the last ones are told."""

_ID = re.compile(r"^(?:violation: )?(\S+)(?:: nothing explains| in shard \d+:| has been ready)", re.MULTILINE)


def cut_down(told: Told, instead: Mapping[str, Script] | None = None, *, seconds: float = 60.0) -> Told:
    """A run of fewer faults and programs that fails in the same way, found within that time. Another plan is another
    run, so it is luck how far this goes.
    """
    found, end = told, time.monotonic() + seconds

    def fails(plan: Plan) -> bool:
        nonlocal found
        if time.monotonic() > end:
            return False
        again = run(plan, instead)
        if failing := _way(again) == _way(told):
            found = again
        return failing

    plan = told.plan
    faults = shrunk(list(plan.faults), lambda few: fails(plan.having(faults=few)))
    plan = plan.having(faults=faults)
    shrunk(list(plan.programs), lambda few: bool(few) and fails(plan.having(programs=few)))
    return found


def _way(told: Told) -> str:
    """What kind of violation it is: its words without ids, numbers and times."""
    first = told.violation.partition("\n")[0]
    if ": nothing explains" in first:
        return "nothing explains " + first.rpartition("ms ")[2].partition(" ")[0]
    if about := _ID.match(first):
        first = first.replace(about[1], "it")
    return re.sub(r"[\d.]+|'[^']*'|\{.*|\[.*", "", first)[:60]


def story(told: Told, *, everything: bool = False) -> str:
    """The story as text: of the ids that the violation is about, or else all; then the violation."""
    plan = told.plan
    of = "on a cluster" if plan.is_cluster else "on one server"
    lines = [
        f"run {plan.seed}, {of} of {plan.nodes}, {plan.shards} shards; its programs: "
        + ", ".join(program.name for program in plan.programs),
        "its faults: " + (", ".join(map(str, plan.faults)) or "none"),
        "",
    ]
    ids = set() if everything else set(_ID.findall(told.violation))
    chosen = [
        f"{at_us / 1000:12.3f} ms  {who:14} {_line(what)}"
        for at_us, who, what in told.story
        if not ids or who in ("fault", "run") or any(id in str(what) for id in ids)
    ]
    left_out = len(chosen) - LINES
    if left_out > 0 and not everything:
        lines.append(f"(the first {left_out} lines are left out)")
        chosen = chosen[-LINES:]
    return "\n".join([*lines, *chosen, "", told.violation])


def _line(what: str | Executed) -> str:
    text = str(what)
    return text if len(text) <= 300 else f"{text[:300]}…"
