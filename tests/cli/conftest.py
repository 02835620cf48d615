"""``shell`` runs commands without a server of their own, ``shardq`` runs them on ``url`` under a new name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.cluster import Cluster
from cluster.server import Server
from shardq import Engine
from tests.cli.shell import Shell

SHARDS = 4


@pytest.fixture(scope="session", params=["single"])
def url(request: pytest.FixtureRequest, server_binary: Path) -> str:
    """The URL of a server; also that of a cluster where the test says ``ON_BOTH``, as its output tells of nodes, or
    processes dispatch in it. Other commands only hand their words to an engine, which is tried on both elsewhere.
    """
    server: Server | Cluster = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory for the commands. Its path is short, so that the path of an embedded server's socket fits."""
    with tempfile.TemporaryDirectory(prefix="home-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def shell(home: Path) -> Iterator[Shell]:
    """Runs commands without a URL and a name."""
    shell = Shell(home, {})
    yield shell
    shell.end()


@pytest.fixture
def shardq(home: Path, url: str, name: str) -> Iterator[Shell]:
    """Runs commands with URL and name in the environment."""
    shell = Shell(home, {"SHARDQ_URL": url, "SHARDQ_NAME": name})
    yield shell
    shell.end()


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """An open engine of the same name, without pollers."""
    with Engine(url, name=name, shards=SHARDS) as engine:
        yield engine
