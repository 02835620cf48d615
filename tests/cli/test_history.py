"""stats --history: the past and the future in characters."""

from __future__ import annotations

from shardq import Engine, Task
from tests.cli.shell import Shell
from tests.history.seeding import seed_a_day


def test_a_day_is_drawn_and_goes_on_after_now(engine: Engine, shardq: Shell) -> None:
    seed_a_day(engine)
    engine.push_many([Task(n, delay=7200) for n in range(2000)])
    done = shardq.run("stats", "--history", "day")
    assert done.code == 0, done
    lines = done.lines
    assert max(map(len, lines)) <= 80
    assert "dispatched" in lines[0]
    now = next(at for at, line in enumerate(lines) if line.startswith("-- now --"))
    assert sum(" 60,000 " in line for line in lines[:now]) >= 20
    assert any("16 to 32 shards" in line for line in lines[:now])
    assert any("not recorded for" in line for line in lines[:now])
    assert sum("2,000" in line for line in lines[now:]) == 1


def test_a_program_reads_it(engine: Engine, shardq: Shell) -> None:
    seed_a_day(engine)
    found = shardq.run("stats", "--history", "hour", "--json").object
    assert len(found["past"]["points"]) == len(found["future"]["buckets"]) == 60
    assert found["past"]["points"][-3]["dispatched"] == 1000


def test_it_is_shown_by_itself(engine: Engine, shardq: Shell) -> None:
    done = shardq.run("stats", "--history", "day", "--totals")
    assert done.code == 2
    assert "--history is shown by itself" in done.err
