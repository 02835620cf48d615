"""Free TCP ports of the loopback interface. Called by whoever starts a server."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from functools import cache
from pathlib import Path

HOST = "127.0.0.1"

# Below the ports that Linux (32768 on) and macOS (49152 on) give to outgoing connections: otherwise a
# client's connection could take the port of a killed server before it is started again.
_RANGE = range(15_000, 32_000)

_given: set[int] = set()


def free_port() -> int:
    """A port that nobody listens on now, and that no other call gives to anybody for as long as this process lives: at
    the address of a server that was killed listens no other test's. A program that asks nobody may take it: be ready
    to try another.
    """
    for port in random.sample(_RANGE, 100):
        if port in _given or not _taken(port):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise OSError(f"100 ports tried between {_RANGE.start} and {_RANGE.stop}, and none is free")


def _taken(port: int) -> bool:
    """Takes a port from the processes of this user: a lock on one byte of a file, which ends with the process."""
    with contextlib.suppress(OSError):
        fcntl.lockf(_locks(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        _given.add(port)
        return True
    return False


@cache
def _locks(pid: int) -> int:
    """The descriptor of the file of locks. A fork's child has none of its parent's locks, so it opens its own."""
    path = Path(tempfile.gettempdir(), f"shardq-ports-{os.getuid()}")
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
