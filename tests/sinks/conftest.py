"""An engine on the shared server that dispatches, and a server of its own as the sink, which a test may break."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.server import Server
from shardq import Engine

SHARDS = 4


@pytest.fixture
def feeding(single: Server, name: str) -> Iterator[Engine]:
    with Engine(single.url, name=name, shards=SHARDS, timeout=10.0) as engine:
        engine.start()
        yield engine


@pytest.fixture
def sink(own_server: Server) -> Server:
    return own_server
