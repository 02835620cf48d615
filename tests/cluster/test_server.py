"""One server process is started, killed, started again, and never left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import redis

from cluster.server import Server, ServerFailed
from tests.support.waiting import wait_until


def test_what_was_written_is_there_after_a_kill(own_server: Server) -> None:
    own_server.ask("SET", "a", "1")
    first = own_server.pid
    own_server.kill()
    assert not own_server.running
    own_server.restart()
    assert own_server.ask("GET", "a") == "1"
    assert own_server.pid != first


def test_a_paused_server_takes_connections_and_says_nothing(own_server: Server) -> None:
    own_server.pause()
    assert not own_server.running
    with pytest.raises(redis.TimeoutError):
        own_server.ask("PING", timeout=0.05)
    own_server.resume()
    assert own_server.ask("PING")


def test_a_paused_server_can_be_closed(server_binary: Path) -> None:
    with Server(server_binary) as server:
        server.pause()
    assert not psutil.pid_exists(server.pid)


def test_a_unix_socket(server_binary: Path) -> None:
    with (
        Server(server_binary, unix=True) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        assert client.ping()


def test_a_password_is_part_of_the_url(server_binary: Path) -> None:
    with (
        Server(server_binary, options={"requirepass": "p@ss:word"}) as server,
        redis.Redis.from_url(server.url) as client,
    ):
        assert client.ping()
        assert server.ask("PING")


def test_a_server_that_does_not_start_tells_what_its_log_says(server_binary: Path) -> None:
    server = Server(server_binary, options={"no-such-option": "1"})
    with pytest.raises(ServerFailed, match=r"(?s)ended with code 1 at its start.*no-such-option"), server:
        pass
    assert not server.folder.exists()


def test_a_taken_port_is_left_for_another(single: Server, server_binary: Path) -> None:
    server = Server(server_binary)
    server.port = single.port
    with server:
        assert server.port != single.port
        assert server.ask("INFO", "server")["process_id"] == server.pid


def test_files_in_a_given_folder_stay(server_binary: Path, tmp_path: Path) -> None:
    with Server(server_binary, folder=tmp_path / "data", options={"appendonly": "yes"}) as server:
        server.ask("SET", "a", "1")
    with Server(server_binary, folder=tmp_path / "data", options={"appendonly": "yes"}) as server:
        assert server.ask("GET", "a") == "1"


def test_a_server_started_by_a_thread_outlives_the_thread(server_binary: Path) -> None:
    with Server(server_binary) as server:
        thread = threading.Thread(target=server.restart)
        thread.start()
        thread.join()
        assert server.ask("PING")


_OWNER = """
import sys
from pathlib import Path
from cluster.server import Server
with Server(Path(sys.argv[1])) as kept, Server(Path(sys.argv[1])) as gone:
    gone.stop()
    print(kept.pid, kept.folder, gone.folder, flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_no_server_outlives_its_owner(server_binary: Path, how: signal.Signals) -> None:
    command = [sys.executable, "-c", _OWNER, str(server_binary)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pid, *folders = owner.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        owner.send_signal(how)
    wait_until(lambda: _gone(int(pid)), "the server has been killed after its owner")
    wait_until(lambda: not any(Path(folder).exists() for folder in folders), "all files are removed")


def _gone(pid: int) -> bool:
    """An orphan may stay a zombie where nobody collects it."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
