"""Small real runs: a suite from the command line, the C client, and a child process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

from bench import command, limit, table
from bench.children import Child
from bench.cores import Cores
from bench.figures import Figure
from bench.probing import CLAIMS, PUSHES
from bench.stand import Stand, standing
from bench.suites import scales
from bench.table import Result
from cluster import servers
from tests.support.waiting import wait_until

NO_PINNING = Cores(frozenset(), frozenset())

needs_the_c_client = pytest.mark.skipif(limit.program() is None, reason=limit.MISSING)


@pytest.fixture
def stand() -> Iterator[Stand]:
    def say(_: str) -> None:
        """Nobody looks."""

    with standing(servers.DEFAULT, cores=NO_PINNING, scale="quick", say=say) as stand:
        yield stand


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_suite_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    assert command.main(["--quick", "--only", "backlog", "--json", str(file)]) == 0
    found = msgspec.json.decode(file.read_bytes())
    assert found["complete"] is True
    assert {figure["suite"] for figure in found["figures"]} == {"backlog"}
    assert found["suites"]["backlog"]["commit"] == found["facts"]["commit"]
    assert "µs/task" in capsys.readouterr().out


def test_merging_keeps_other_suites_and_replaces_its_own(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"

    def saved(suite: str, value: float, *, complete: bool = True) -> None:
        result = Result(suite, Figure("name", value, "s"))
        table.save(file, [result], {"commit": f"of {value}"}, complete=complete, merge=True)

    saved("push", 1.0)
    saved("idle", 2.0)
    saved("push", 3.0)
    found = msgspec.json.decode(file.read_bytes())
    assert [(figure["suite"], figure["value"]) for figure in found["figures"]] == [("idle", 2.0), ("push", 3.0)]
    assert found["suites"] == {"push": {"commit": "of 3.0"}, "idle": {"commit": "of 2.0"}}
    assert found["facts"] == {"commit": "of 1.0"}
    saved("idle", 4.0, complete=False)
    assert msgspec.json.decode(file.read_bytes())["complete"] is False


@needs_the_c_client
def test_the_c_client_does_every_script_and_what_it_did_is_there(stand: Stand) -> None:
    # each of them counts afterwards, and fails when a task is missing
    # two calls of 500: ids are drawn from 2,000,000,000 for each place in a call, and may hardly meet
    assert limit.push_rate(stand, 1_000) > 0
    assert limit.push_rate(stand, 400, payload="x" * 4096) > 0
    assert limit.dispatch_rate(stand, 2_000) > 0
    assert limit.dispatch_rate(stand, 100, limit=1) > 0
    assert limit.forward_rate(stand, 2_000) > 0
    assert limit.claim_rate(stand, 2_000, claim=500) > 0
    assert stand.ask_all("DBSIZE") == [0]


def test_the_textbooks_way(stand: Stand) -> None:
    assert limit.literal_rate(stand, 100) > 0


def test_probes_push_claim_and_tell(stand: Stand) -> None:
    with (
        stand.engine() as engine,
        Child("bench.probing", CLAIMS, stand.url, engine.name, "probe") as claims,
        Child("bench.probing", PUSHES, stand.url, engine.name, "probe", "200", "0") as pushes,
    ):
        engine.start()
        for child in (claims, pushes):
            child.await_ready()
            child.begin()
        wait_until(lambda: engine.stats().dispatched >= 20, "20 tasks were pushed and dispatched")
        pushed = pushes.end()
        stand.until_gone(engine, lambda keys: keys.task)
        claimed = claims.end()
    assert len(pushed) == len(claimed) == len({id for _, _, id in claimed})
    assert all(took > 0 and ping > 0 for _, took, ping in pushed)
    assert all(late >= 0 for _, late, _ in claimed)


def test_a_child_that_is_left_is_gone(stand: Stand) -> None:
    me = psutil.Process()
    with stand.engine() as engine, Child("bench.draining", stand.url, engine.name, "1") as child:
        child.await_ready()
        (process,) = [one for one in me.children() if "bench.draining" in " ".join(one.cmdline())]
        assert process.cmdline()[0] == sys.executable
    assert not process.is_running()


def test_a_child_that_ends_at_once_is_said_so() -> None:
    with (
        Child("bench.draining", "nowhere://", "x", "1") as child,
        pytest.raises(RuntimeError, match="ended at its start"),
    ):
        child.await_ready()


@pytest.mark.slow
def test_the_scripts_of_a_task_are_counted_with_and_without_a_limit(stand: Stand) -> None:
    # a dispatch may carry many tasks, a claim and an ack carry one here
    sizes = replace(scales.BASE, consumers=1, shards=1, dead=10)
    assert 2 <= scales.of_a_task(stand, sizes, count=20) < 20
    assert 2 <= scales.of_a_task(stand, replace(sizes, limit="concurrency"), count=20) < 20
