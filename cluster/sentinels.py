"""A master, its replica and the sentinels that watch them, all real processes on this machine.

Called by the tests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import redis

from cluster import servers
from cluster.ports import HOST
from cluster.server import Server, ServerFailed, Tls

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
        tls: Tls | None = None,
    ) -> None:
        """``tls``: of the servers and of the sentinels."""
        self.binary = binary or servers.binary()
        self._passwords = password, sentinel_password
        self._tls = tls
        login = {"requirepass": password, "masterauth": password} if password else {}
        encrypted = {"tls-replication": "yes"} if tls else {}
        users = {f"user {_user(number)}": f"on >{number} ~* &* +@all" for number in range(SENTINELS)}
        self._common = {**encrypted, **users}
        self._options = {
            "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1", **login, **self._common,
            **(options or {}),
        }  # fmt: skip
        self._stack = ExitStack()
        self.master = Server(self.binary, options=self._options, tls=tls)
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

    def url_of(self, sentinels: Sequence[int]) -> str:
        """The URL, with these sentinels in this order."""
        hosts = ",".join(sentinel.address for sentinel in self.sentinels)
        return self.url.replace(hosts, ",".join(self.sentinels[number].address for number in sentinels))

    def wait_promoted(self, *, timeout: float = PROMOTION_TIMEOUT_S) -> Server:
        """Wait until the replica is the master, by its own word and by that of every sentinel that runs."""

        def stands_in() -> bool:
            running = [sentinel for sentinel in self.sentinels if sentinel.running]
            named = [sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE) for sentinel in running]
            port = str(self.replica.port)
            return self.replica.ask("ROLE")[0] == "master" and all(address[1] == port for address in named)

        self._until(stands_in, "the replica takes the place of the master", timeout)
        return self.replica

    def split(self, minority: Collection[int] = ()) -> None:
        """Cuts the network in two: the master with these sentinels on one side, the others and the replica on the
        other. Clients reach both sides, and so does replication. It needs both passwords: without one, who is shut out
        comes in as nobody.
        """
        majority = [number for number in range(SENTINELS) if number not in minority]
        self._shut_out(self.master, majority)
        self._shut_out(self.replica, minority)
        for number, sentinel in enumerate(self.sentinels):
            self._shut_out(sentinel, majority if number in minority else minority)

    def wait_split(self, minority: Collection[int] = ()) -> None:
        """Wait until the majority names the replica, which is a master. Those of the minority name the old one."""

        def stands_in() -> bool:
            named = {self.named_by(number) for number in range(SENTINELS) if number not in minority}
            return named == {self.replica.port} and bool(self.replica.ask("ROLE")[0] == "master")

        self._until(stands_in, "the majority has replaced the master", PROMOTION_TIMEOUT_S)

    def named_by(self, number: int) -> int:
        """The port of the master that a sentinel names."""
        return int(self.sentinels[number].ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def unite(self) -> None:
        """Ends the split."""
        for server in (self.master, self.replica, *self.sentinels):
            for number in range(SENTINELS):
                server.ask("ACL", "SETUSER", _user(number), "on")

    @staticmethod
    def _shut_out(server: Server, sentinels: Collection[int]) -> None:
        for number in sentinels:
            server.ask("ACL", "SETUSER", _user(number), "off")
            server.ask("CLIENT", "KILL", "USER", _user(number))

    def _start(self) -> None:
        self._stack.enter_context(self.master)
        options = {**self._options, "replicaof": f"{HOST} {self.master.port}"}
        self.replica = self._stack.enter_context(Server(self.binary, options=options, tls=self._tls))
        self._until(lambda: bool(self.replica.ask("ROLE")[3] == "connected"), "the replica is in step")
        for number in range(SENTINELS):
            self.sentinels.append(self._stack.enter_context(self._new_sentinel(number)))
        for sentinel in self.sentinels:
            self._until(partial(_knows_all, sentinel), "the sentinels know each other and the replica")

    def _new_sentinel(self, number: int) -> Server:
        _, sentinel_password = self._passwords
        sentinel = sentinel_of(self.binary, self.master, quorum=QUORUM, tls=self._tls)
        sentinel.options |= {
            f"sentinel down-after-milliseconds {SERVICE}": str(DOWN_AFTER_MS),
            f"sentinel failover-timeout {SERVICE}": "5000",
            f"sentinel auth-user {SERVICE}": _user(number),
            f"sentinel auth-pass {SERVICE}": str(number),
            "sentinel sentinel-user": _user(number),
            "sentinel sentinel-pass": str(number),
            **self._common,
        }
        if sentinel_password:
            sentinel.options["requirepass"] = sentinel_password
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


def _user(number: int) -> str:
    """The user by which a sentinel is known to servers and to other sentinels."""
    return f"sentinel{number}"


def sentinel_of(binary: Path, master: Server, *, quorum: int = 1, tls: Tls | None = None) -> Server:
    """A sentinel that watches a server as its ``SERVICE``; not started yet."""
    sentinel = Server(binary, arguments=["--sentinel"], tls=tls)
    for unknown in _NOT_FOR_SENTINELS:
        sentinel.options.pop(unknown, None)
    # first: what else is said of a service follows this line
    sentinel.options[f"sentinel monitor {SERVICE}"] = f"{HOST} {master.port} {quorum}"
    return sentinel


def _knows_all(sentinel: Server) -> bool:
    others = sentinel.ask("SENTINEL", "SENTINELS", SERVICE)
    return len(others) == SENTINELS - 1 and bool(sentinel.ask("SENTINEL", "REPLICAS", SERVICE))
