"""A worker of an engine that nobody dispatches says so, with the two ways out."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import pytest

from shardq import Engine
from shardq.core.fleet import missing
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.worker import report as reporter
from tests.support.engines import Engines
from tests.support.programs import Program
from tests.support.waiting import wait_until

SOON_S = 3.0
"""The promise."""

SLACK_S = 10.0
"""For a machine that is busy."""

PROGRAM = """
import shardq

engine = shardq.Engine(name="{name}", shards=4)
worker = engine.worker({options})

@worker.on("mail")
def send(delivery: shardq.Delivery) -> None: ...

if __name__ == "__main__":
    engine.push("hello", topic="mail")
    worker.run()
"""


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.getMessage() == NO_DISPATCHER]


def test_both_ways_out_are_named() -> None:
    assert "engine.start()" in NO_DISPATCHER
    assert "`shardq run`" in NO_DISPATCHER


@pytest.mark.slow
def test_it_is_said_once(
    engines: Engines, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "BEAT_S", 0.1)
    worker = engine.worker()
    worker.on("mail")(print)
    began = time.monotonic()
    with engines.working(worker):
        wait_until(lambda: said(caplog), "it says so")
        assert time.monotonic() - began < SOON_S + SLACK_S
        engine.push("hello", topic="mail")
        beats = len(caplog.records)
        wait_until(lambda: engine.fleet()[0].seen_s < 0.05, "it reports again")
        assert len(said(caplog)) == 1, beats
        (record,) = said(caplog)
        assert record.levelno == logging.WARNING


@pytest.mark.slow
def test_it_is_not_said_when_one_starts_a_moment_later(
    engines: Engines, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "LOOK_S", 5.0)
    looks = 0
    looked = reporter.Reporter._look_for_dispatchers

    def counted(self: reporter.Reporter) -> None:
        nonlocal looks
        looked(self)
        looks += 1

    monkeypatch.setattr(reporter.Reporter, "_look_for_dispatchers", counted)
    worker = engine.worker()
    worker.on("mail")(print)
    with engines.working(worker):
        wait_until(lambda: worker.healthy, "it runs")
        engine.start()
        wait_until(lambda: looks, "it has looked")
    assert said(caplog) == []


def test_one_that_is_started_again_is_not_missed_at_once(
    engines: Engines, engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reporter, "LOOK_S", 0.1)
    monkeypatch.setattr(reporter, "BEAT_S", 1.0)
    engine.start()
    worker = engine.worker()
    worker.on("mail")(print)
    with engines.working(worker):
        wait_until(lambda: engine.fleet()[-1].kind == "worker", "it reports")
        engine.stop()
        wait_until(lambda: said(caplog), "it is missed")
    assert len(said(caplog)) == 1


def test_a_claim_that_waits_says_it_too(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing, "LOOK_S", 0.2)
    consumer = engine.consumer("mail")
    for _ in range(5):
        assert consumer.claim(wait=0.2) == []
    assert len(said(caplog)) == 1
    engine.start()
    caplog.clear()
    wait_until(lambda: engine.fleet(), "the dispatcher is known")
    assert engine.consumer("mail").claim(wait=0.5) == []
    assert said(caplog) == []


@pytest.mark.slow
@pytest.mark.parametrize("url", ["single"], indirect=True)
@pytest.mark.parametrize("options", ["", "processes=2"])
def test_shardq_work_and_a_program_of_ones_own_say_it(url: str, name: str, tmp_path: Path, options: str) -> None:
    (tmp_path / "shopapp.py").write_text(PROGRAM.format(name=name, options=options))
    variables = {"SHARDQ_URL": url, "PYTHONPATH": str(tmp_path), "HOME": os.environ.get("HOME", str(tmp_path))}
    for words in (("shopapp.py",), ("-m", "shardq", "work", "shopapp:worker")):
        path = [str(tmp_path / words[0])] if len(words) == 1 else words
        program = Program(*path, variables=variables, logs=True)
        try:
            program.matching("no dispatcher runs.*engine.start().*`shardq run`")
        finally:
            program.end()
