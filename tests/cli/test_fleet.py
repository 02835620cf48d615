"""fleet."""

from __future__ import annotations

import os
import socket
import time

from shardq import Engine
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
