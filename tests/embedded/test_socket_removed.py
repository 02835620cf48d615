"""A server whose socket was removed, as programs do that tidy up /tmp, is replaced, and nothing is lost."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from shardq.errors import EmbeddedFault
from shardq.features.embedded import enter
from tests.embedded.seen import client, gone, server_pid, servers_in
from tests.support.engines import Engines
from tests.support.waiting import wait_until


@contextmanager
def sleeper() -> Iterator[psutil.Process]:
    """A process that has nothing to do with any of this."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield psutil.Process(process.pid)
        finally:
            process.kill()


def test_who_enters_next_replaces_the_server(folder: Path) -> None:
    with enter(folder, fsync="always") as use:
        with client(use) as connection:
            connection.set("a", "1")
        pid = server_pid(use)
        use.socket.unlink()
        with enter(folder) as second, client(second) as connection:
            assert second.started
            assert gone(pid)
            assert connection.get("a") == "1"
            assert "Received SIGTERM" in (folder / "server.log.1").read_text(), "it has ended in an orderly way"
            with client(use) as connection_of_the_first:
                assert connection_of_the_first.get("a") == "1"
        assert len(servers_in(folder)) == 1
    assert not servers_in(folder)


def test_the_directory_of_the_socket_is_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = folder.parent / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    folder = folder / ("long" * 30)
    with enter(folder) as use:
        assert use.socket.is_relative_to(runtime)
        pid = server_pid(use)
        shutil.rmtree(runtime / "shardq")
        with enter(folder) as second:
            assert second.started
            assert gone(pid)
    assert not servers_in(folder)


def test_the_note_that_tells_of_the_socket_is_removed(folder: Path) -> None:
    with enter(folder) as use:
        pid = server_pid(use)
        (folder / "socket").unlink()
        with enter(folder) as second:
            assert second.started
            assert gone(pid)
    assert not servers_in(folder)


def test_the_last_to_leave_ends_the_server(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with enter(folder) as use, client(use) as connection:
        connection.set("a", "1")
        use.socket.unlink()
    assert not caplog.records, "nothing had to be said"
    assert not servers_in(folder)
    with enter(folder) as use, client(use) as connection:
        assert connection.get("a") == "1"


def test_engines_go_on(engines: Engines, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "shardq")
    url = f"embedded://{folder}"
    engine = engines.opened(url, fsync="always")
    engine.start()
    consumer = engine.consumer()
    engine.push("before", delay=0.5)
    [pid] = [server.pid for server in servers_in(folder)]
    (folder / "server.sock").unlink()
    other = engines.opened(url)
    assert gone(pid)
    other.push("after")
    delivered: list[object] = []

    def both() -> bool:
        for delivery in consumer.claim(10, wait=1):
            delivered.append(delivery.payload)
            consumer.ack(delivery)
        return len(delivered) == 2

    wait_until(both, "both tasks were delivered")
    assert sorted(map(str, delivered)) == ["after", "before"]
    assert len(servers_in(folder)) == 1
    consumer.close()
    other.close()
    engine.close()
    assert not servers_in(folder)


def test_a_process_that_is_not_the_server_is_left_alone(folder: Path) -> None:
    """The file with the process id may be old, and its number another process's by now."""
    with enter(folder) as use, sleeper() as other:
        right = (folder / "server.pid").read_text()
        moved = use.socket.rename(folder / "moved")
        (folder / "server.pid").write_text(f"{other.pid}\n")
        with pytest.raises(EmbeddedFault, match="lives but cannot be used: nobody listens"):
            enter(folder, timeout=0.5)
        assert other.is_running()
        assert other.status() != psutil.STATUS_ZOMBIE
        (folder / "server.pid").write_text(right)
        moved.rename(use.socket)


def test_another_directorys_server_is_left_alone(folder: Path, tmp_path: Path) -> None:
    with enter(folder) as use, enter(tmp_path / "other") as other:
        right = (folder / "server.pid").read_text()
        moved = use.socket.rename(folder / "moved")
        shutil.copy(tmp_path / "other" / "server.pid", folder / "server.pid")
        with pytest.raises(EmbeddedFault, match="lives but cannot be used: nobody listens"):
            enter(folder, timeout=0.5)
        assert server_pid(other)
        (folder / "server.pid").write_text(right)
        moved.rename(use.socket)


def test_a_copy_of_a_directory_in_use_is_another_one(folder: Path, tmp_path: Path) -> None:
    """It has the note of the other's socket, too."""
    with enter(folder, fsync="always") as use, client(use) as connection:
        connection.set("a", "1")
        subprocess.run(["cp", "-a", str(folder), str(tmp_path / "copy")], check=True)
        with enter(tmp_path / "copy") as copied, client(copied) as other:
            assert copied.started
            assert other.get("a") == "1"
            other.set("a", "2")
            assert connection.get("a") == "1"
        assert connection.ping()
    assert not servers_in(tmp_path / "copy")


def test_a_directory_that_was_moved_while_in_use(folder: Path, tmp_path: Path) -> None:
    use = enter(folder, fsync="always")
    with client(use) as connection:
        connection.set("a", "1")
    pid = server_pid(use)
    folder.rename(tmp_path / "moved")
    with enter(tmp_path / "moved") as moved, client(moved) as connection:
        assert moved.started
        assert gone(pid)
        assert connection.get("a") == "1"
    use.leave()
    assert not servers_in(tmp_path / "moved")


def test_a_directory_that_was_removed_while_in_use(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a temporary one is: nobody could find its server any more."""
    first, last = enter(folder), enter(folder)
    pid = server_pid(first)
    shutil.rmtree(folder)
    first.leave()
    assert not gone(pid)
    last.leave()
    assert gone(pid)
    assert not caplog.records
    assert not folder.exists()
