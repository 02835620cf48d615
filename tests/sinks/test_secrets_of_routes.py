"""What a route may read of the process that sends it, and where that sends: named secrets, to named servers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from shardq import Engine
from shardq.core.layout.topology import Route
from shardq.core.operation import run
from shardq.core.topology_edits import edit_topology
from shardq.engine import engine_wide
from shardq.engine.access import EngineAccess
from shardq.errors import InvalidUrl
from tests.sinks.seen import left, sink_stats
from tests.sinks.test_http import Endpoint
from tests.support.waiting import wait_until


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    endpoint = Endpoint(tmp_path / "requests")
    yield endpoint
    endpoint.end()


def stored(engine: Engine, topic: str, to: str) -> None:
    """Sets a route as one who may write to Redis does, and asks nobody."""
    edit = partial(engine_wide.with_route, topic=topic, route=Route(to))
    run(EngineAccess(engine).open_driver(), edit_topology(EngineAccess(engine).cache, edit))


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "SHARDQ_URL"])
def test_the_environment_of_the_process_is_posted_nowhere(
    feeding: Engine, endpoint: Endpoint, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "hushhush")
    to = f"http://127.0.0.1:{endpoint.port}/x?u=${{{name}}}"
    with pytest.raises(InvalidUrl, match=r"\$\{NAME\} stands for a secret"):
        feeding.forward("hooks", to=to)
    stored(feeding, "hooks", to)
    feeding.push(1, topic="hooks")
    wait_until(lambda: sink_stats(feeding, "hooks").error, "it is said")
    assert "${NAME} stands for a secret" in sink_stats(feeding, "hooks").error
    assert any("hooks" in reason and "${NAME}" in reason for reason in feeding.health().reasons)
    assert (endpoint.requests(), left(feeding)) == ([], 1)
