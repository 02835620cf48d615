"""``engines`` makes engines of both kinds: a test that takes it, or ``engine``, runs for threads and for asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardq import Consumer, Engine
from tests.support.engines import Engines
from tests.support.servers import Servers

SHARDS = 4
"""Of the engines here: enough for every master of the cluster to have one."""


@pytest.fixture(params=["sync", "asyncio"])
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    made = Engines(request.param)
    yield made
    made.end()


@pytest.fixture
def engine(engines: Engines, url: str, name: str) -> Engine:
    """Open, with a new name of its own, and without pollers."""
    return engines.opened(url, name=name, shards=SHARDS, timeout=10.0)


@pytest.fixture
def running(engine: Engine) -> Engine:
    """The same, dispatching."""
    engine.start()
    return engine


@pytest.fixture
def consumer(engine: Engine) -> Consumer:
    """Of the default topic."""
    return engine.consumer()


@pytest.fixture
def servers(url: str) -> Iterator[Servers]:
    """What ``url`` points to, from outside."""
    with Servers(url) as servers:
        yield servers
