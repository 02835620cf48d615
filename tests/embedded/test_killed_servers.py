"""Engines start the embedded server again when it is killed, as the kernel does when memory runs out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from shardq import Unanswered, Unavailable
from shardq.features.embedded import enter
from tests.embedded.seen import answers, client, gone, server_pid, servers_in
from tests.support.engines import Engines
from tests.support.waiting import wait_until

_PUSHER = """
import sys
import shardq

with shardq.Engine(sys.argv[1], fsync="always") as engine:
    engine.start()
    for line in sys.stdin:
        engine.push(line.strip(), topic="other")
        print("pushed", flush=True)
"""


def kill(folder: Path) -> None:
    [server] = servers_in(folder)
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: gone(server.pid), "the server is gone")


@pytest.mark.slow
def test_the_next_call_starts_it_with_what_it_kept(engines: Engines, folder: Path) -> None:
    engine = engines.opened(f"embedded://{folder}", fsync="always")
    id = engine.push("before", delay=3600)
    kill(folder)
    engine.push("after", delay=3600)
    assert engine.get(id) is not None
    assert engine.stats().scheduled == 2
    engine.close()
    assert not servers_in(folder), "it is ended by the last who leaves, as any other"


@pytest.mark.slow
def test_pollers_and_consumers_go_on_by_themselves(engines: Engines, folder: Path) -> None:
    engine = engines.opened(f"embedded://{folder}", fsync="always")
    engine.start()
    engine.push("later", delay=3)
    consumer = engine.consumer()
    with ThreadPoolExecutor(1) as threads:
        claimed = threads.submit(consumer.claim, wait=60)
        kill(folder)
        [delivery] = claimed.result()
    assert delivery.payload == "later"
    consumer.ack(delivery)
    consumer.close()


@pytest.mark.slow
def test_of_several_processes_one_starts_it(engines: Engines, folder: Path) -> None:
    url = f"embedded://{folder}"
    with ExitStack() as stack:
        others = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", _PUSHER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
            )
            for _ in range(3)
        ]
        for other in others:
            stack.callback(other.kill)

        def push() -> None:
            for other in others:
                assert other.stdin is not None
                other.stdin.write("task\n")
                other.stdin.flush()
            for other in others:
                assert other.stdout is not None
                assert other.stdout.readline() == "pushed\n"

        engine = engines.opened(url, fsync="always")
        push()
        for _ in range(2):
            kill(folder)
            push()
            engine.push("task", topic="other")
            assert len(servers_in(folder)) == 1
        stats = engine.stats()
        assert stats.ready + stats.scheduled == 11
        for other in others:
            assert other.stdin is not None
            other.stdin.close()
            assert other.wait(60) == 0
        assert len(servers_in(folder)) == 1, "it stays for the last"
    engine.close()
    assert not servers_in(folder)


@pytest.mark.slow
def test_one_that_dies_at_each_start_is_no_hot_loop(
    engines: Engines, folder: Path, wrapped: Callable[[str], None], tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    wrapped(f'case "$1" in --version) ;; *) echo start >> {starts} ;; esac')
    use = enter(folder, fsync="always")
    engine = engines.opened(f"embedded://{folder}", timeout=4.0)
    engine.start()
    engine.push("before", delay=3600)
    manifest = folder / "appendonlydir" / "appendonly.aof.manifest"
    good = manifest.read_text()
    manifest.write_text("nonsense\n")
    kill(folder)
    began = time.monotonic()

    def told() -> bool:
        with pytest.raises((Unavailable, Unanswered)) as caught:
            engine.push("during", delay=3600)
        return re.search(r"(?s) ended.*; the end of .*server\.log.*manifest", str(caught.value)) is not None

    wait_until(told, "the end of the log is in the error")
    took_s = time.monotonic() - began
    # one before; in a hot loop there are some ten a second from each driver
    assert len(starts.read_text().splitlines()) <= 2 + took_s / 2
    manifest.write_text(good)
    wait_until(lambda: use.socket.exists() and answers(use.socket), "the pollers have started it again")
    assert engine.stats().scheduled >= 1
    use.leave()


def test_a_killed_server_keeps_the_stricter_fsync(folder: Path) -> None:
    with enter(folder, fsync="always") as use:
        kill(folder)
        with enter(folder, fsync="everysec") as second, client(second) as connection:
            assert second.started
            assert connection.config_get("appendfsync") == {"appendfsync": "always"}
        assert server_pid(use)
    with enter(folder, fsync="everysec") as use, client(use) as connection:
        assert connection.config_get("appendfsync") == {"appendfsync": "everysec"}
