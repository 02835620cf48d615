"""``world`` is a new engine, and what makes situations of it. ``tuned`` is a server that tests set up otherwise, and
as it was again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.server import Server
from shardq import Engine
from tests.cli.shell import Shell
from tests.support.servers import Servers
from tests.support.worlds import SHARDS, World


@pytest.fixture
def world(
    single: Server, name: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    shell = Shell(tmp_path_factory.mktemp("home"), {"SHARDQ_URL": single.url, "SHARDQ_NAME": name})
    try:
        with (
            Servers(single.url) as servers,
            Engine(single.url, name=name, shards=SHARDS) as engine,
            ExitStack() as stack,
        ):
            yield World(engine, single.url, name, servers, shell, monkeypatch, stack)
    finally:
        shell.end()


@pytest.fixture(scope="session")
def tuned(server_binary: Path) -> Iterator[Server]:
    with Server(server_binary, options={"appendonly": "yes", "appendfsync": "no"}) as server:
        yield server
