"""``shell`` runs commands without a server of their own, ``shardq`` runs them on ``url`` under a new name."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardq import Engine
from tests.cli.shell import Shell

SHARDS = 4


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
