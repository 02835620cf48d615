"""One real server process: start it, break it on purpose, start it again, and leave nothing behind.

Called by ``Cluster``, by the tests and by the benches. A server ends with the process that
started it, even when that is killed, unless it was ``let_go``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cluster import servers, warden
from cluster.ports import HOST, free_port
from shardq.features.embedded.program import environment

START_TIMEOUT_S = 60.0  # a slow machine under load, with an append-only file to read
ANSWER_TIMEOUT_S = 20.0  # likewise, where the disk is slow, too
_STOP_TIMEOUT_S = 30.0
_PORT_TRIES = 5  # another process may take a free port between our look and the server's bind
_LOG_LINES = 12

# The server begins only when the warden knows of it: if we are killed before that, it never does.
_GATE = 'read -r go && exec "$@" </dev/null'

# A server for tests keeps nothing unless asked to, and lets a test use DEBUG.
_OPTIONS = {"save": '""', "appendonly": "no", "enable-debug-command": "local", "daemonize": "no"}


class ServerFailed(Exception):
    """A server process did not start, or did not stop; the message ends with the tail of its log."""


@dataclass(frozen=True)
class Tls:
    """The files of a server that speaks TLS only. Clients must show a certificate of the same authority."""

    ca: Path
    cert: Path
    key: Path


class Server:
    """A server of its own on 127.0.0.1, or on a unix socket, as a context manager.

    ``options`` are lines of its configuration file: ``{"appendonly": "yes", "maxmemory": "10mb"}``.
    Without a ``folder`` its files live in a temporary one that goes with it. ``arguments`` come last on
    its command line.

    >>> with Server(options={"appendonly": "yes"}) as server:
    ...     server.ask("SET", "a", "1")
    ...     server.kill()
    ...     server.restart()
    ...     server.ask("GET", "a")
    'OK'
    '1'
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        port: int | None = None,
        unix: bool = False,
        folder: Path | None = None,
        options: Mapping[str, str] | None = None,
        tls: Tls | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        self.binary = binary or servers.binary()
        self.options = {**_OPTIONS, **(options or {})}
        self.folder = folder or Path(tempfile.mkdtemp(prefix="shardq-server-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.socket = self.folder / "server.sock" if unix else None
        self.log = self.folder / "server.log"
        self.port = 0 if unix else port or free_port()
        self._own_folder = folder is None
        self._may_move = port is None and not unix
        self._tls = tls
        self._arguments = list(arguments)
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._key = warden.new_key()

    def __repr__(self) -> str:
        state = "paused" if self._paused else "running" if self.running else "stopped"
        return f"<Server {self.address} {state} pid {self.pid}>"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """``host:port``, or the path of the unix socket."""
        return str(self.socket) if self.socket else f"{HOST}:{self.port}"

    @property
    def url(self) -> str:
        """How clients reach it, with its ``requirepass`` if it has one."""
        scheme = "unix" if self.socket else "rediss" if self._tls else "redis"
        password = self.options.get("requirepass")
        secret = f":{quote(password, safe='')}@" if password else ""
        return f"{scheme}://{secret}{self.address}"

    @property
    def pid(self) -> int:
        """The process id of the last start; 0 before the first."""
        return self._process.pid if self._process else 0

    @property
    def running(self) -> bool:
        """Alive and not paused."""
        return not self._paused and self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Launch it and wait until it answers."""
        self.launch()
        self.wait_answering()

    def launch(self) -> None:
        """Start the process without waiting for it; ``wait_answering`` must follow."""
        if self._process is not None and self._process.poll() is None:
            raise ServerFailed(f"{self!r} is already running")
        config = self.folder / "server.conf"
        config.write_text("".join(f"{key} {value}\n" for key, value in self._lines().items()))
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the tests, which then stop their servers in order.
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GATE, "sh", self.binary, config, *self._arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment(),
                start_new_session=True,
            )
        self._paused = False
        self._note(pid=self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.close()

    def wait_answering(self, *, timeout: float = START_TIMEOUT_S) -> None:
        """Wait until it answers a PING with anything but LOADING."""
        deadline = time.monotonic() + timeout
        tries = 1
        while not self._answers():
            assert self._process is not None
            code = self._process.poll()
            if code is not None:
                self._note(pid=None)
                if self._may_move and "Address already in use" in self.log_tail() and tries < _PORT_TRIES:
                    tries += 1
                    self.port = free_port()
                    self.launch()
                    continue
                raise ServerFailed(f"{self.binary} ended with code {code} at its start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"{self!r} did not answer within {timeout:.0f} s:\n{self.log_tail()}")
            time.sleep(0.01)
        self._may_move = False

    def ask(self, *words: str | bytes | float, decode: bool = True, timeout: float = ANSWER_TIMEOUT_S) -> Any:
        """One command on a connection of its own; texts of the answer are ``str``, or bytes."""
        client = self.client(decode=decode, timeout=timeout)
        command: Callable[..., Any] = client.execute_command
        try:
            return command(*words)
        finally:
            client.close()

    def client(self, *, decode: bool = False, timeout: float | None = ANSWER_TIMEOUT_S) -> redis.Redis:
        """A client without resends, for the caller to close. Answers come as bytes unless ``decode``."""
        options: dict[str, Any] = {"unix_socket_path": str(self.socket)} if self.socket else {}
        if self._tls:
            files = {"ca_certs": self._tls.ca, "certfile": self._tls.cert, "keyfile": self._tls.key}
            options = {"ssl": True, **{f"ssl_{name}": str(path) for name, path in files.items()}}
        return redis.Redis(
            host=HOST,
            port=self.port,
            password=self.options.get("requirepass"),
            decode_responses=decode,
            socket_timeout=timeout,
            retry=Retry(NoBackoff(), 0),
            **options,
        )

    def kill(self) -> None:
        """SIGKILL: what a crash is like. Its files stay for ``restart``."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in order, as the system's SIGTERM does. Its files stay for ``restart``."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Start it again on the same port with the same files; stops it first if it runs."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it takes connections and says nothing. Returns when it has stopped."""
        pid = self._alive().pid
        os.kill(pid, signal.SIGSTOP)
        self._paused = True
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT after ``pause``."""
        os.kill(self._alive().pid, signal.SIGCONT)
        self._paused = False

    def let_go(self) -> None:
        """From now on it outlives this process."""
        warden.note(self._key, pid=None, folder=None)

    def close(self) -> None:
        """Stop it for good; a temporary folder goes. Idempotent."""
        self._end(signal.SIGKILL if self._own_folder else signal.SIGTERM)
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)
        warden.note(self._key, pid=None, folder=None)

    def log_tail(self) -> str:
        """The last lines of its log."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            lines = []
        return "\n".join(lines[-_LOG_LINES:]) or "(it wrote nothing)"

    def _lines(self) -> dict[str, str]:
        network = {"bind": HOST, "port": str(self.port), "dir": str(self.folder)}
        if self.socket:
            network = {"port": "0", "unixsocket": str(self.socket), "dir": str(self.folder)}
        if self._tls:
            network |= {
                "port": "0",
                "tls-port": str(self.port),
                "tls-ca-cert-file": str(self._tls.ca),
                "tls-cert-file": str(self._tls.cert),
                "tls-key-file": str(self._tls.key),
            }
        return {**network, **self.options}

    def _answers(self) -> bool:
        if self.socket and not _listens(self.socket):  # redis-py before 6 would leave the socket open
            return False
        try:
            self.ask("PING", timeout=1.0)
            # If the port was taken, it is another server that answers while ours is just about to end.
            return bool(self.ask("INFO", "server", timeout=1.0)["process_id"] == self.pid)
        except (redis.AuthenticationError, redis.ResponseError):  # the test's own users, or no INFO: it answers
            return True
        except (redis.ConnectionError, redis.TimeoutError):  # not yet listening, or loading
            return False

    def _alive(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ServerFailed(f"{self!r} has no process")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                if self._paused and how is not signal.SIGKILL:  # a stopped process takes no other
                    os.kill(process.pid, signal.SIGCONT)
                process.send_signal(how)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise ServerFailed(
                    f"{self!r} did not end on {how.name} within {_STOP_TIMEOUT_S:.0f} s and was killed:\n"
                    f"{self.log_tail()}"
                ) from None
        self._paused = False
        self._note(pid=None)

    def _note(self, *, pid: int | None) -> None:
        warden.note(self._key, pid=pid, folder=self.folder if self._own_folder else None)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
