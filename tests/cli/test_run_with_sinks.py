"""run sends forwarded topics to its --sinks alone, with the secrets of its folder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardq import Engine
from tests.cli.shell import LONGEST_S, Shell
from tests.sinks.test_http import Endpoint
from tests.support.waiting import wait_until


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    endpoint = Endpoint(tmp_path / "requests")
    yield endpoint
    endpoint.end()


def test_a_route_gets_a_secret_and_another_is_refused(
    shardq: Shell, engine: Engine, endpoint: Endpoint, tmp_path: Path
) -> None:
    (tmp_path / "TOKEN@127.0.0.1").write_text("hush\n")
    named = f"http://127.0.0.1:{endpoint.port}"
    process = shardq.start("run", "--quiet", "--sinks", named, "--sinks", "nats://h", "--secrets", str(tmp_path))
    assert shardq.run("forward", "hooks", "--to", f"{named}/#header.X-Key=a${{TOKEN}}").code == 0
    assert shardq.run("forward", "others", "--to", f"http://localhost:{endpoint.port}/").code == 0
    for topic in ("hooks", "others"):
        engine.push(1, topic=topic)
    wait_until(endpoint.requests, "one has arrived")

    def told() -> str:
        return shardq.run("health").out

    refused = (
        f"topic 'others' can't be forwarded to http://localhost:{endpoint.port}/, and its tasks wait: this process may"
    )
    wait_until(lambda: refused in told(), "health has the other one")
    assert [headers["X-Key"] for _, (*_, headers) in endpoint.requests()] == ["ahush"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LONGEST_S)


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"SHARDQ_SINKS": "https://*.example.org, nats://h"},
            "may not send to https://h:443: none of its --sinks",
        ),
        ({"SHARDQ_SINKS": "example.org"}, "--sinks has 'example.org', which is not a pattern of servers"),
        ({"SHARDQ_SECRETS": "/no/such"}, "--secrets '/no/such' is not a folder"),
        ({}, "${NAME} stands for a secret, and is possible only in the user"),
    ],
)
def test_what_is_wrong_is_said(shardq: Shell, engine: Engine, variables: dict[str, str], text: str) -> None:
    done = shardq.run("forward", "hooks", "--to", "https://h/" + ("" if variables else "${HOME}"), **variables)
    assert (done.code, done.out) == (2, "")
    assert text in done.err
    assert engine.topology.routes == {}
