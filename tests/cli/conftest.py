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
    """Of who runs the commands. Its path is short, as a home's is: an embedded server's socket has room there."""
    with tempfile.TemporaryDirectory(prefix="home-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture
def shell(home: Path) -> Iterator[Shell]:
    """No URL, no name."""
    shell = Shell(home, {})
    yield shell
    shell.end()


@pytest.fixture
def shardq(home: Path, url: str, name: str) -> Iterator[Shell]:
    """URL and name in the environment."""
    shell = Shell(home, {"SHARDQ_URL": url, "SHARDQ_NAME": name})
    yield shell
    shell.end()


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """Open, on the same name, without pollers."""
    with Engine(url, name=name, shards=SHARDS) as engine:
        yield engine
