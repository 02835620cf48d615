"""One outage is one line in the log, however many pollers notice it; stats() says why each shard fails."""

from __future__ import annotations

import logging

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.core.dispatcher.forwarder import Forwarder
from tests.support.engines import Engines
from tests.support.waiting import wait_until

pytestmark = pytest.mark.square

SHARDS = 16


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    lines = [record for record in caplog.records if record.name.startswith("shardq")]
    return [record.getMessage() for record in lines if record.levelno >= logging.WARNING]


def failing(engine: Engine) -> int:
    return sum(shard.poller == "failing" and shard.poller_error is not None for shard in engine.stats().shards)


def test_a_server_that_is_killed(
    engines: Engines, own_server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines.opened(own_server.url, name=name, shards=SHARDS)
    engine.start()
    wait_until(lambda: engine.health().ok, "every poller is well")
    caplog.clear()
    own_server.kill()
    wait_until(lambda: failing(engine) == SHARDS, "every poller says why it fails")
    own_server.start()
    wait_until(lambda: said(caplog)[-1].endswith(f" s, {SHARDS} shards are dispatched again"), "the end is said")
    # a machine that stands still may be an outage of its own
    lines = said(caplog)
    kinds = ["fails, its shards are not dispatched" in line for line in lines]
    assert kinds == [n % 2 == 0 for n in range(len(lines))], lines
    assert all(line.startswith(own_server.address) for line in lines), lines
    assert sum(f" {SHARDS} shards are dispatched again" in line for line in lines) == 1
    wait_until(lambda: engine.health().ok, "every poller is well again")


def test_an_unexpected_error_of_the_forwarder(
    running: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is met again with each retry."""
    rounds: list[Forwarder] = []

    def broken(forwarder: Forwarder) -> bool:
        rounds.append(forwarder)
        raise KeyError("odd")

    monkeypatch.setattr(Forwarder, "_round", broken)
    running.forward("mail", to=f"{running.name}-list")
    running.limit("mail", rate=1000)
    running.push("x", topic="mail")
    wait_until(lambda: len(rounds) > 3, "it goes on")
    assert caplog.text.count("the forwarder met an unexpected error") == 1
