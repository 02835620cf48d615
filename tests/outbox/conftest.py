"""Databases with an outbox: SQLite in a file, and a real PostgreSQL."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from cluster.postgres import Postgres
from shardq import Engine, outbox
from shardq.relay.database import open_database
from tests.support.diagonal import diagonal


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A relay pushes the same from either database."""
    diagonal(metafunc, ("url", "database_url"), [("single", "sqlite"), ("cluster", "postgresql")])


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of the test's own, with an outbox in it."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/app.db"
    else:
        server: Postgres = request.getfixturevalue("postgres")
        url = server.make_database(f"d{uuid.uuid4().hex}")
    database = open_database(url)
    outbox.create(database)
    database.dispose()
    return url


@pytest.fixture
def database(database_url: str) -> Iterator[sa.Engine]:
    database = open_database(database_url)
    yield database
    database.dispose()


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """A relay's, which takes either kind: no twin of it is tried."""
    with Engine(url, name=name, shards=4, timeout=10.0) as engine:
        yield engine
