"""Free TCP ports of the loopback interface. Called by whoever starts a server."""

from __future__ import annotations

import random
import socket

HOST = "127.0.0.1"

# Below the ports that Linux (32768 on) and macOS (49152 on) give to outgoing connections: otherwise a
# client's connection could take the port of a killed server before it is started again.
_RANGE = range(15_000, 32_000)


def free_port() -> int:
    """A port nobody listens on now. Somebody may take it before the caller does: be ready to try another."""
    for port in random.sample(_RANGE, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"100 ports tried between {_RANGE.start} and {_RANGE.stop}, and none is free")
