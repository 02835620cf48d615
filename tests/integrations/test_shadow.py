"""The facts of a shadow, folded into a report: what is missing, twice, early and late on each side."""

from __future__ import annotations

from shardq.integrations.shadow import Fact, compared

NOW = 1_000_000.0


def test_facts_are_folded() -> None:
    facts = [(Fact("expected", f"t{n}", 900_000 + n, size=100 * n), 1.0) for n in range(6)]
    facts += [(Fact("expected", "later", 2_000_000), 1.0), (Fact("expected", "soon", 995_000, unseen=7), 1.0)]
    facts += [(Fact("cancelled", "t5", 0), 5.0), (Fact("cancelled", "t4", 0), 950_000.0)]
    facts += [(Fact("ran", f"t{n}", 900_000 + n, at=900_000 + n + 1000 * n), 1.0) for n in range(4)]
    facts += [(Fact("ran", "t0", 900_000, at=930_000), 1.0), (Fact("ran", "nobody's", 1, at=1), 1.0)]
    facts += [(Fact("arrived", f"t{n}", 900_000 + n), 900_000.0 + n + 2) for n in range(5)]
    facts += [(Fact("arrived", "t1", 900_001), 899_000.0)]
    report = compared("mail", facts, now_ms=NOW)
    assert (report.delayed, report.due, report.cancelled, report.unseen) == (8, 6, 1, 7)
    queue, shardq = report.queue, report.shardq
    assert (queue.seen, queue.missing, queue.twice, queue.early) == (4, 1, 1, 0)
    assert queue.late == (2.0, 3.0, 3.0)
    assert (shardq.seen, shardq.missing, shardq.twice, shardq.early) == (5, 0, 1, 0)
    assert shardq.late == (0.002, 0.002, 0.002)
    assert str(report).splitlines() == [
        "shadow of mail: 8 delayed, 6 due by now, 1 cancelled; 188 bytes a message",
        "                            as it is        shardq",
        "seen                               4             5",
        "missing                            1             0",
        "more than once                     1             1",
        "early                              0             0",
        "late, half of them           2.000 s       0.002 s",
        "late, 99 of 100              3.000 s       0.002 s",
        "latest                       3.000 s       0.002 s",
        "as it is: a worker has begun it; shardq: it would be in the worker's queue",
        "7 were not noted, as the engine could not be reached",
    ]


def test_a_shadow_without_workers_says_so() -> None:
    report = compared("mail", [(Fact("expected", "one", 1), 1.0)], now_ms=NOW)
    assert (report.queue.late, report.shardq.missing) == (None, 1)
    assert "no worker has told of a run" in str(report)
