"""fleet."""

from __future__ import annotations

import os
import socket
import time

import pytest

from shardq import Engine, Member
from shardq.engine import tables
from tests.cli.conftest import SHARDS
from tests.cli.shell import ON_BOTH, Shell
from tests.support.waiting import wait_until


def test_nobody(shardq: Shell, engine: Engine) -> None:
    done = shardq.run("fleet")
    assert (done.code, done.lines) == (0, ["none"])
    assert "`shardq run` starts one" in done.err
    assert shardq.run("fleet", "--json").out == ""


@ON_BOTH
def test_a_dispatcher(shardq: Shell, engine: Engine) -> None:
    engine.start()
    engine.push("x", topic="mail")
    wait_until(lambda: any(m.dispatched == 1 and len(m.shards) == SHARDS for m in engine.fleet()), "it is reported")
    done = shardq.run("fleet")
    assert (done.code, done.err) == (0, "")
    head, _, row = [line for line in done.lines if line.strip()]
    assert head.split()[:3] == ["process", "kind", "serves"]
    assert row.split()[:3] == [f"{socket.gethostname()}:{os.getpid()}", "dispatcher", f"0-{SHARDS - 1}"]
    told = shardq.run("fleet", "--json").object
    assert (told["kind"], told["pid"], told["shards"]) == ("dispatcher", os.getpid(), list(range(SHARDS)))
    assert told["dispatch_lateness"]["mail"]["tasks"] == 1
    assert time.time() - 100 < told["since"] < time.time() + 1


@pytest.mark.parametrize(
    ("batches", "batched", "shown"), [(3, 7, "2.3"), (2, 1000, "500"), (7, 10_500, "1,500"), (0, 0, ""), (0, 7, "")]
)
def test_how_large_the_batches_of_a_worker_were(batches: int, batched: int, shown: str) -> None:
    """On average; another process may have reported anything."""
    worker = Member(kind="worker", name="w", batches=batches, batched=batched)
    view = tables.fleet([worker, Member(kind="dispatcher", name="d")])
    (column,) = [column for column in view.columns if column.title == "batch"]
    assert [column.cell(row) for row in view.rows] == [shown, ""]
    assert column.optional, "it is left out where no worker has any"
