"""What a run of many rounds came to, as it is written into a file, and read by the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from bench.chaos import Chaos, Counts, RoundRecord
from bench.cores import Cores
from bench.machine import facts
from cluster.servers import DEFAULT
from tests.chaos.rounds import Told

MOST_TEXTS, MOST_CHARS = 5, 3000
"""Of the violations of a round, in words."""


def machine(topology: str) -> dict[str, str]:
    """On what a run was made."""
    told = facts(DEFAULT, topology=topology, cores=Cores(frozenset(), frozenset()))
    told.pop("pinned")
    told["server"] = told["server"].replace("no persistence", "append-only files")
    return told


def begun() -> Chaos:
    return Chaos(machine("one server, Sentinel, cluster"))


def add(record: Chaos, told: Told) -> None:
    verdict, plan = told.verdict, told.plan
    record.rounds.append(
        RoundRecord(
            seed=plan.seed,
            ground=plan.ground,
            faults=len(told.happened),
            tasks=told.tasks,
            plain=told.plain,
            undecided=verdict.undecided,
            deliveries=verdict.deliveries + told.plain,
            late_s=dict(told.late_s),
            seconds=dict(told.seconds),
            clocks=plan.clocks,
            violations=Counter(map(_kind, told.wrong)),
            wrong=[text[:MOST_CHARS] for text in told.wrong[:MOST_TEXTS]],
            broken=told.broken,
        )
    )
    record.faults = _added(record.faults, told.faults)
    record.faults_of[plan.ground] = _added(record.faults_of.get(plan.ground, {}), told.faults)
    record.left_out = _added(record.left_out, told.left_out)
    record.doubled = _added(record.doubled, verdict.doubled)
    record.lost = _added(record.lost, verdict.lost)
    record.outcomes = _added(record.outcomes, verdict.outcomes)
    record.errors = _added(record.errors, verdict.errors)
    record.unjudged += told.unjudged


def leave_out(record: Chaos, what: str) -> None:
    record.left_out = _added(record.left_out, {what: 1})


def _kind(wrong: str) -> str:
    """Which of ``VIOLATIONS`` it is."""
    head = wrong.partition("\n")[0]
    if head.endswith(" get → gone"):
        return "lost"
    return "early, or doubled" if " claim #" in head or " arrive #" in head else "other"


def lines(record: Chaos) -> Sequence[str]:
    """The whole in a few lines."""
    told = [
        f"{sum(record.faults.values()):,} faults over {record.tasks:,} tasks in {len(record.rounds)} rounds, "
        f"{record.took_s / 60:.0f} minutes: {record.violations} violations",
        f"undecided: {sum(each.undecided for each in record.rounds)} ids, whose histories allow too many orders",
        f"faults: {_shown(record.faults)}",
        f"delivered again: {_shown(record.doubled) or 'none'}",
        f"accepted and lost: {_shown(record.lost) or 'none'}",
    ]
    if record.unjudged:
        told.append(f"not judged: {record.unjudged:,} forwarded tasks in lists that a failover took back")
    if record.left_out:
        told.append(f"left out: {_shown(record.left_out)}")
    if broken := [text for each in record.rounds for text in each.broken]:
        told.append(f"servers that did not do as they should: {len(broken)} times")
    return told


def _added(counts: Counts, more: Counts) -> Counts:
    return dict((Counter(counts) + Counter(more)).most_common())


def _shown(counts: Counts) -> str:
    return ", ".join(f"{what} {count:,}" for what, count in counts.items())
