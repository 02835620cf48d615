"""Too few file descriptors, or too few clients allowed by a server, are reported at the start and by the errors that
follow.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cluster.server import Server
from shardq.core.drivers.descriptors import ENOUGH
from tests.support.engines import Engines, Kind
from tests.support.waiting import wait_until
from tests.support.workers import SOON_S, Worker

SCRIPT = Path(sys.executable).parent / "shardq"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "asyncio"])
@pytest.mark.parametrize("case", ["told", "opening", "open", "polling", "many"])
@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_in_a_process_that_may_have_few_files_open(case: str, kind: Kind, url: str, name: str) -> None:
    with Worker("tests.support.few_descriptors", case, kind, url, name) as worker:
        assert worker.said() == "OK"


@pytest.mark.slow
def test_a_server_that_takes_few_clients(
    engines: Engines, server_binary: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Server(server_binary, options={"appendonly": "yes", "maxclients": "30"}) as server:
        engine = engines.opened(server.url, name=name, shards=40)

        def warned() -> list[str]:
            # a server that was slow to answer is not waited for
            engine.stop()
            engine.start()
            return [text for text in map(logging.LogRecord.getMessage, caplog.records) if "clients" in text]

        text = wait_until(warned, "it is said", timeout=SOON_S)[0]
        assert text.startswith(f"{server.address} takes 30 clients, and may come to need 1")
        assert text.endswith("if this process has to serve every shard: raise its maxclients")
        refused = wait_until(
            lambda: [
                shard.poller_error
                for shard in engine.stats().shards
                if "max number of clients" in str(shard.poller_error)
            ],
            "pollers find no place",
            timeout=SOON_S,
        )
        assert "raise its maxclients (CONFIG SET maxclients)" in str(refused[0])
        engine.stop()
        server.ask("CONFIG", "SET", "maxclients", "1000")
        engine.start()
        wait_until(lambda: engine.health().ok, "every poller is well", timeout=SOON_S)
        assert engine.health().warnings == []
        engine.close()


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_command_raises_its_limit(url: str, name: str) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    words = [str(SCRIPT), "run", "--quiet", "--url", url, "--name", name, "--shards", "70"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh", *words], stderr=subprocess.PIPE, text=True
    )
    try:
        wanted = ENOUGH if hard == resource.RLIM_INFINITY else min(hard, ENOUGH)
        looked_at = psutil.Process(process.pid)
        wait_until(lambda: looked_at.num_fds() > 70, "its pollers run", timeout=SOON_S)
        assert looked_at.rlimit(psutil.RLIMIT_NOFILE) == (wanted, hard)
    finally:
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=2 * SOON_S)
    assert process.returncode == 0
    assert "files open" not in err


@pytest.mark.parametrize("url", ["single"], indirect=True)
def test_the_command_says_when_its_limit_is_too_low(url: str, name: str) -> None:
    words = [str(SCRIPT), "run", "--url", url, "--name", name, "--shards", "70"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'ulimit -n 120; exec "$@"', "sh", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = next((line for line in process.stdout if "files open" in line), "")
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.communicate(timeout=2 * SOON_S)
    assert "warning: this process may have 120 files open, and may come to need 1" in said
