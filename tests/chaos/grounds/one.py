"""One server with an append-only file."""

from __future__ import annotations

from cluster.server import Server
from tests.chaos.grounds.ground import SETTLED_S, Ground
from tests.chaos.proxy import HOST

DATA = "data"

NOTHING_FORGOTTEN = {"aof-disable-auto-gc": "yes", "aof-timestamp-enabled": "yes"}
"""Files that a rewrite has replaced stay, and times are noted: what a round that went wrong leaves has every write."""


class One(Ground):
    kind = "aof"
    has_replicas = False

    def _start(self) -> None:
        server = Server(self.binary, folder=self._folder / DATA, options={**self.kept, **NOTHING_FORGOTTEN})
        self._server = self._stack.enter_context(server)
        self.ports[self._server] = self.proxies.open(self._server.port)

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.ports[self._server]}"

    @property
    def servers(self) -> list[Server]:
        return [self._server]

    def masters(self) -> list[Server]:
        return [self._server] if self._server.running else []

    def replica_of(self, master: Server) -> Server | None:
        return None

    def settle(self, timeout: float = SETTLED_S) -> None:
        """It is alone."""

    def server_of(self, slot: int) -> Server:
        return self._server
