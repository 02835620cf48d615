"""The servers in which peers keep their tasks, seen from outside: their memory, and their commands when idle."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import psutil

from bench.cores import Cores
from bench.stand import settled
from cluster import servers, warden
from cluster.ports import HOST, free_port
from cluster.server import Server

START_TIMEOUT_S = 10.0

_NOT_ITS = {"info", "config|resetstat"}
"""Commands of the measurement itself."""


class Store(Protocol):
    url: str

    def clear(self) -> None:
        """Forgets all tasks."""

    def memory(self) -> int:
        """Returns the bytes in use without those of connections, as soon as the number settles."""

    def commands(self) -> int:
        """Returns the number of commands executed so far."""


class Redis:
    """A server of one kind without persistence. Its INFO counts bytes and commands."""

    def __init__(self, server: Server) -> None:
        self.url = f"{server.url}/0"
        self._client = server.client(decode=True, timeout=60.0)

    def clear(self) -> None:
        self._client.flushall()

    def memory(self) -> int:
        return settled(self._used)

    def commands(self) -> int:
        told = self._client.info("commandstats")
        counts = {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in told.items()}
        return sum(calls for name, calls in counts.items() if name not in _NOT_ITS)

    def close(self) -> None:
        self._client.close()

    def _used(self) -> int:
        told = self._client.info("memory")
        return int(told["used_memory"]) - int(told["mem_clients_normal"])


class Beanstalkd:
    """A beanstalkd without a log. It does not tell its memory, so the resident memory of the process counts."""

    def __init__(self, binary: str) -> None:
        self.port = free_port()
        self.url = f"beanstalkd://{HOST}:{self.port}"
        self._key = warden.new_key()
        self._binary = binary
        self._process = self._start()

    def clear(self) -> None:
        self.close()
        self._process = self._start()

    def memory(self) -> int:
        return int(psutil.Process(self._process.pid).memory_info().rss)

    def commands(self) -> int:
        with socket.create_connection((HOST, self.port)) as connection:
            connection.sendall(b"stats\r\nquit\r\n")
            with connection.makefile("r") as answer:
                told = re.findall(r"cmd-(\S+): (\d+)", answer.read())
        return sum(int(calls) for name, calls in told if name != "stats")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        warden.note(self._key, pid=None, folder=None)

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [self._binary, "-l", HOST, "-p", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        warden.note(self._key, pid=process.pid, folder=None)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((HOST, self.port)).close()
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise RuntimeError(f"{self._binary} does not listen on port {self.port}") from None
                time.sleep(0.01)
            else:
                return process


@contextlib.contextmanager
def redis(kind: str, *, cores: Cores) -> Iterator[Redis]:
    with contextlib.ExitStack() as stack:
        with cores.for_servers():
            server = stack.enter_context(Server(servers.binary(kind)))
        store = Redis(server)
        stack.callback(store.close)
        yield store


@contextlib.contextmanager
def beanstalkd(binary: str | Path, *, cores: Cores) -> Iterator[Beanstalkd]:
    with cores.for_servers():
        store = Beanstalkd(str(binary))
    try:
        yield store
    finally:
        store.close()
