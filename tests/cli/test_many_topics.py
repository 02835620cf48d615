"""More topics than a table has room for: the largest are shown, and the sum of the others."""

from __future__ import annotations

from typing import Any

from shardq import Engine, Task
from tests.cli.shell import Shell

TOPICS = 120


def tasks_of(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["topic"]: row["scheduled"] for row in rows}


def test_the_largest_and_the_others(shardq: Shell, engine: Engine) -> None:
    # mail-000 has one task, mail-119 two
    engine.push_many([Task(n, topic=f"mail-{n:03}", delay=3600) for n in [*range(TOPICS), *range(60, TOPICS)]])
    largest = tasks_of(shardq.run("topics", "--json", "--limit", "60").objects)
    assert largest == {f"mail-{n:03}": 2 for n in range(60, TOPICS)} | {"*": 60}
    by_default = tasks_of(shardq.run("topics", "--json").objects)
    assert (len(by_default), by_default["*"], sum(by_default.values())) == (101, 20, 180)
    some = shardq.run("topics", "--json", "--match", "mail-0[01]?")
    assert tasks_of(some.objects) == {f"mail-{n:03}": 1 for n in range(20)}
    table = shardq.run("topics", "--limit", "1", "--match", "mail-00?").lines
    assert [line.split()[:2] for line in table if line.strip().startswith(("mail", "*"))] == [
        ["mail-000", "1"],
        ["*", "9"],
    ]
    stats = shardq.run("stats", "--json").object["topics"]
    assert (len(stats), stats["*"]["scheduled"], sum(each["scheduled"] for each in stats.values())) == (101, 20, 180)
