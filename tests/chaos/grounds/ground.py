"""What every ground has: servers that hold tasks, reached through proxies, and what can be done to them. Their
clocks may be set.
"""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from cluster import servers
from cluster.server import Server, ServerFailed
from tests.chaos.proxy import Proxies

NAME = "chaos"

MOST_SHARDS = 8

KEPT = {"appendonly": "yes", "appendfsync": "no", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
"""What is answered is in the file, whatever happens to the process: see ``tests.conftest``."""

SYNCED = {"appendfsync": "everysec", "auto-aof-rewrite-percentage": "0"}
"""Of servers that forget, instead: a move waits for the disk, and the file is cut behind what was synced."""

SETTLED_S = 90.0
"""For a cluster on a busy machine to agree again."""

FAKETIME = ("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1", "/usr/lib/faketime/libfaketime.so.1",
            "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1")  # fmt: skip


def faketime() -> Path | None:
    """The library that gives a process another clock; None where it is not installed."""
    found = [Path(each) for each in FAKETIME if Path(each).exists()]
    return found[0] if found else None


def program_of(binary: Path, folder: Path, *, clocks: bool) -> Path:
    """The program of a server that lives on when a file can't grow; with ``clocks``, one whose clock is set by the file
    ``clock`` beside its configuration.
    """
    lines = ["#!/bin/sh", "trap '' XFSZ"]
    if clocks:
        library = faketime()
        assert library is not None, "without libfaketime no clock can be set"
        lines += [
            'export FAKETIME_TIMESTAMP_FILE="$(dirname "$1")/clock"',
            f"export LD_PRELOAD={library} FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1",
            '[ -f "$FAKETIME_TIMESTAMP_FILE" ] || echo +0 > "$FAKETIME_TIMESTAMP_FILE"',
        ]
    program = folder / "server"
    program.write_text("\n".join([*lines, f'exec {binary} "$@"\n']))
    program.chmod(0o700)
    return program


def set_clock(server: Server, seconds: float) -> None:
    """From now on this server's clock goes ahead by so much, if it is one that can be set."""
    new = server.folder / "clock.new"
    new.write_text(f"{seconds:+g}\n")
    new.replace(server.folder / "clock")


class Ground(ABC):
    """For a ``with`` block. At its end the folder has the log of each server, named after the port that clients use."""

    kind = ""
    has_replicas = True

    def __init__(self, proxies: Proxies, folder: Path, *, clocks: bool = False, kept: Mapping[str, str] = KEPT) -> None:
        """``clocks``: they can be set; ``kept``: the options by which they keep what they have."""
        self.proxies = proxies
        self._folder = folder
        self.kept = kept
        self.binary = program_of(servers.binary(), folder, clocks=clocks)
        self.ports: dict[Server, int] = {}
        """Server → the port at which clients find it."""
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in (*self.servers, *self.sentinels):
            with suppress(FileNotFoundError):
                shutil.copyfile(server.log, self._folder / f"server-{self.ports.get(server, server.port)}.log")
        self._stack.close()

    @abstractmethod
    def _start(self) -> None: ...

    @property
    @abstractmethod
    def url(self) -> str:
        """How clients reach it."""

    @property
    @abstractmethod
    def servers(self) -> list[Server]:
        """Those that hold tasks: masters and replicas."""

    @abstractmethod
    def masters(self) -> list[Server]:
        """Those that serve tasks now, and run."""

    @abstractmethod
    def replica_of(self, master: Server) -> Server | None:
        """A replica that runs, and is in step."""

    @abstractmethod
    def server_of(self, slot: int) -> Server:
        """The master that serves a slot now."""

    @property
    def sentinels(self) -> list[Server]:
        return []

    def restart(self, server: Server) -> None:
        """Starts one that was killed, in the role that it has by now."""
        server.start()

    def part(self, master: Server) -> None:
        """Cuts a master off from all other servers. Clients reach it still."""
        raise NotImplementedError

    def unite(self, master: Server) -> None:
        """Ends that."""
        raise NotImplementedError

    @abstractmethod
    def settle(self, timeout: float = SETTLED_S) -> None:
        """Waits until all servers run, agree, and have their replicas in step."""

    def shards_of(self, server: Server) -> frozenset[int] | None:
        """The shards that a master serves now; None: all."""
        return None

    def _until(self, done: Callable[[], bool], what: str, timeout: float = SETTLED_S) -> None:
        deadline = time.monotonic() + timeout
        trouble = "no server in trouble"
        while True:
            try:
                if done():
                    return
            except (redis.RedisError, ServerFailed) as exc:
                trouble = f"{type(exc).__name__}: {exc}"
            if time.monotonic() > deadline:
                raise ServerFailed(f"waited {timeout:.0f} s until {what}, in vain ({trouble})")
            time.sleep(0.05)


def source(number: int) -> str:
    """The address from which a server connects to others, so that a proxy knows it."""
    return f"127.0.1.{number + 1}"


def in_step(replica: Server) -> bool:
    """True if it gets all writes of its master as they are made."""
    role = replica.ask("ROLE", timeout=5.0)
    return bool(role[0] == "slave" and role[3] == "connected")
