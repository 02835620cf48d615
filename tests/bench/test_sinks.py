"""The bench of sinks: a small run on a real server, and what it answers where no sink is left."""

from __future__ import annotations

import pytest

from bench.sinks.__main__ import main


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "list", "--tasks", "200"]) == 0
    out = capsys.readouterr().out
    assert "a list of another Redis" in out
    assert "CPU a task: relay" in out


def test_a_run_to_an_endpoint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "http", "--tasks", "1000"]) == 0
    out = capsys.readouterr().out
    assert "an endpoint of HTTP" in out
    assert "p99" in out


def test_no_sink_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "quorum"])
    assert "those of RabbitMQ need --brokers" in capsys.readouterr().err
