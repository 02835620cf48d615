"""A master, its replica and the sentinels that watch them, all real processes on this machine.

Called by the tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import redis

from cluster import servers
from cluster.ports import HOST
from cluster.server import Server, ServerFailed

SERVICE = "main"
SENTINELS = 3
QUORUM = 2  # of them have to miss the master: one may die with it
START_TIMEOUT_S = 30.0
PROMOTION_TIMEOUT_S = 30.0
DOWN_AFTER_MS = 1000  # short enough for a test to wait for a promotion, long enough for a busy machine
_POLL_S = 0.02

# A sentinel is configured by other lines than a server.
_NOT_FOR_SENTINELS = ("save", "appendonly", "enable-debug-command")


class Sentinels:
    """One service under Sentinel, as a context manager.

    >>> with Sentinels() as service:
    ...     service.master.kill()
    ...     service.wait_promoted() is service.replica
    True
    """

    def __init__(
        self,
        binary: Path | None = None,
        *,
        password: str = "",
        sentinel_password: str = "",
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.binary = binary or servers.binary()
        self._passwords = password, sentinel_password
        login = {"requirepass": password, "masterauth": password} if password else {}
        self._options = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **login, **(options or {})}
        self._stack = ExitStack()
        self.master = Server(self.binary, options=self._options)
        """The first one, whoever is master now."""
        self.replica: Server
        self.sentinels: list[Server] = []

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
        self._stack.close()

    @property
    def url(self) -> str:
        """How clients reach it, through the sentinels."""
        password, sentinel_password = (quote(each, safe="") for each in self._passwords)
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        secret = f":{password}@" if password else ""
        query = f"?sentinel_password={sentinel_password}" if sentinel_password else ""
        return f"redis+sentinel://{secret}{hosts}/{SERVICE}{query}"

    def wait_promoted(self, *, timeout: float = PROMOTION_TIMEOUT_S) -> Server:
        """Wait until the replica is the master, by its own word and by that of every sentinel that runs."""

        def stands_in() -> bool:
            running = [sentinel for sentinel in self.sentinels if sentinel.running]
            named = [sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE) for sentinel in running]
            port = str(self.replica.port)
            return self.replica.ask("ROLE")[0] == "master" and all(address[1] == port for address in named)

        self._until(stands_in, "the replica takes the place of the master", timeout)
        return self.replica

    def _start(self) -> None:
        self._stack.enter_context(self.master)
        options = {**self._options, "replicaof": f"{HOST} {self.master.port}"}
        self.replica = self._stack.enter_context(Server(self.binary, options=options))
        self._until(lambda: bool(self.replica.ask("ROLE")[3] == "connected"), "the replica is in step")
        for _ in range(SENTINELS):
            self.sentinels.append(self._stack.enter_context(self._new_sentinel()))
        for sentinel in self.sentinels:
            self._until(partial(_knows_all, sentinel), "the sentinels know each other and the replica")

    def _new_sentinel(self) -> Server:
        password, sentinel_password = self._passwords
        sentinel = sentinel_of(self.binary, self.master, quorum=QUORUM)
        sentinel.options[f"sentinel down-after-milliseconds {SERVICE}"] = str(DOWN_AFTER_MS)
        sentinel.options[f"sentinel failover-timeout {SERVICE}"] = "5000"
        if password:
            sentinel.options[f"sentinel auth-pass {SERVICE}"] = password
        if sentinel_password:
            sentinel.options |= {"requirepass": sentinel_password, "sentinel sentinel-pass": sentinel_password}
        return sentinel

    def _until(self, done: Callable[[], bool], what: str, timeout: float = START_TIMEOUT_S) -> None:
        deadline = time.monotonic() + timeout
        trouble = "no server in trouble"
        while True:
            try:
                if done():
                    return
            except redis.RedisError as exc:
                trouble = f"{type(exc).__name__}: {exc}"
            if time.monotonic() > deadline:
                tails = "\n".join(f"{each!r}\n{each.log_tail()}" for each in (self.master, *self.sentinels))
                raise ServerFailed(f"waited {timeout:.0f} s until {what}, in vain ({trouble}):\n{tails}")
            time.sleep(_POLL_S)


def sentinel_of(binary: Path, master: Server, *, quorum: int = 1) -> Server:
    """A sentinel that watches a server as its ``SERVICE``; not started yet."""
    sentinel = Server(binary, arguments=["--sentinel"])
    for unknown in _NOT_FOR_SENTINELS:
        sentinel.options.pop(unknown, None)
    # first: what else is said of a service follows this line
    sentinel.options[f"sentinel monitor {SERVICE}"] = f"{HOST} {master.port} {quorum}"
    return sentinel


def _knows_all(sentinel: Server) -> bool:
    others = sentinel.ask("SENTINEL", "SENTINELS", SERVICE)
    return len(others) == SENTINELS - 1 and bool(sentinel.ask("SENTINEL", "REPLICAS", SERVICE))
