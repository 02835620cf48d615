"""``engine`` has few shards and no pollers; ``migration`` moves its tasks step by step."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardq import Engine
from shardq.core.drivers.sync import Driver
from tests.resharding.migration import Migration

SHARDS = 4


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    with Engine(url, name=name, shards=SHARDS, timeout=10.0) as engine:
        yield engine


@pytest.fixture
def migration(driver: Driver, name: str) -> Migration:
    return Migration(driver, name)


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups so small that a few tasks are several, of which each is somewhere else on its way."""
    monkeypatch.setattr("shardq.core.resharding.migration.GROUP", 2)
    monkeypatch.setattr("shardq.core.calls.resharding.PAGE", 3)
