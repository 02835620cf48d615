"""``folder`` is a directory for a server, ``engines`` makes engines of both kinds, ``wrapped`` puts a script around the
server program.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.embedded.seen import servers_in
from tests.support.engines import Engines


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory with a short path, in which the socket fits. Servers that run in it at the end are killed."""
    with tempfile.TemporaryDirectory(prefix="embedded-", ignore_cleanup_errors=True) as home:
        folder = Path(home) / "data"
        yield folder
        for server in servers_in(folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                os.kill(server.pid, signal.SIGKILL)


@pytest.fixture(params=["sync", "asyncio"])
def engines(request: pytest.FixtureRequest, folder: Path) -> Iterator[Engines]:
    made = Engines(request.param)
    yield made
    made.end()


@pytest.fixture
def wrapped(server_binary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets a shell start all later servers, after the lines given."""

    def wrap(lines: str) -> None:
        path = tmp_path / "bin"
        path.mkdir(exist_ok=True)
        script = path / "valkey-server"
        script.write_text(f'#!/bin/sh\n{lines}\nexec {server_binary} "$@"\n')
        script.chmod(0o755)
        monkeypatch.setenv("SHARDQ_EMBEDDED", str(script))

    return wrap
