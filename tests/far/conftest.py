"""Engines with a far store, in SQLite and in a real PostgreSQL."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.postgres import Postgres
from shardq import Engine
from shardq.features.far import far as of_engine
from shardq.features.far import rows
from shardq.features.far.far import open_store
from shardq.features.far.rows import Horizon
from shardq.features.far.store import Store
from tests.support.diagonal import diagonal
from tests.support.engines import SHARDS, Engines

DAY_S = 86_400.0

Make = Callable[..., Engine]


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A database is reached by the same statements from both engines: see ``DIAGONAL``."""
    ways = [("sync", "single", "sqlite"), ("asyncio", "cluster", "postgresql")]
    diagonal(metafunc, ("engines", "url", "database"), ways)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database of the test's own."""
    if request.param == "sqlite":
        return str(tmp_path / "far.db")
    server: Postgres = request.getfixturevalue("postgres")
    return server.make_database(f"d{uuid.uuid4().hex}")


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due in three seconds is near: far tasks of a test fall due in its time."""
    monkeypatch.setattr(rows, "MARGIN_S", 1.0)
    monkeypatch.setattr(of_engine, "LEAST_AHEAD_S", 0.1)


@pytest.fixture
def store(database: str, name: str) -> Iterator[Store]:
    """The open table of an engine whose near tasks are due within an hour."""
    store = open_store(database)
    store.horizon = Horizon(3_600_000)
    store.open(name, 3600.0, later())
    yield store
    store.close()


@pytest.fixture
def make(engines: Engines, url: str, name: str, database: str) -> Make:
    """Makes an engine with the table."""

    def made(**options: Any) -> Engine:
        return engines.make(options.pop("url", url), **{"name": name, "shards": SHARDS, "far": database} | options)

    return made


@pytest.fixture
def engine(make: Make) -> Engine:
    return make()


def later(seconds: float = 30.0) -> float:
    """A deadline."""
    return time.monotonic() + seconds
