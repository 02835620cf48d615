"""``shell`` runs commands without a server of their own, ``shardq`` runs them on ``url`` under a new name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardq import Engine
from tests.cli.shell import Shell

SHARDS = 4


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """No URL, no name."""
    shell = Shell(tmp_path, {})
    yield shell
    shell.end()


@pytest.fixture
def shardq(tmp_path: Path, url: str, name: str) -> Iterator[Shell]:
    """URL and name in the environment."""
    shell = Shell(tmp_path, {"SHARDQ_URL": url, "SHARDQ_NAME": name})
    yield shell
    shell.end()


@pytest.fixture
def engine(url: str, name: str) -> Iterator[Engine]:
    """Open, on the same name, without pollers."""
    with Engine(url, name=name, shards=SHARDS) as engine:
        yield engine
