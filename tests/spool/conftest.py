"""Engines with a spool, on servers that the tests stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.server import Server
from shardq import Engine
from shardq.relay.file import SpoolFile
from tests.support.engines import SHARDS, Engines
from tests.support.waiting import wait_until

TIMEOUT_S = 1.0
"""The patience of the engines here with a server that is away. It bounds no call to a server that is there: those
repeat what took longer.
"""

Make = Callable[..., Engine]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.spool"


@pytest.fixture
def make(engines: Engines, own_server: Server, name: str, path: Path) -> Make:
    """Makes an engine on ``own_server`` with the spool."""

    def made(**options: Any) -> Engine:
        url = options.pop("url", own_server.url)
        given = {"name": name, "shards": SHARDS, "timeout": TIMEOUT_S, "spool": path}
        return engines.make(url, **given | options)

    return made


def seen(path: Path) -> Any:
    """The gauge of a file."""
    file = SpoolFile(path)
    try:
        return file.stats()
    finally:
        file.close()


def drained(path: Path) -> None:
    """Waits until nothing is left in the file."""
    wait_until(lambda: seen(path).waiting == 0, "all that was spooled is replayed", timeout=60)


def direct(engine: Engine, **options: Any) -> str:
    """The id of a push that a server took: who is told that Redis is back still holds the rest of the outage."""

    def pushed() -> str | None:
        receipt = engine.push("direct", **options)
        return receipt if receipt.outcome != "spooled" else None

    id = wait_until(pushed, "pushes go to the server again", timeout=60)
    assert id is not None
    return id
