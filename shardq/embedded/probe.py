"""Probes a server on a unix socket with plain sockets: this package comes before the drivers.

Called by ``share``.
"""

from __future__ import annotations

import enum
import re
import socket
import time
from pathlib import Path

_POLL_S = 0.05
_ANSWER_S = 1.0  # a server that is busy with one slow script answers later: the caller asks again


class Answer(enum.Enum):
    """The outcome of a PING."""

    READY = "it answers"
    LOADING = "it is reading its data"
    SILENT = "it takes connections and says nothing"
    ABSENT = "nobody listens"


def ping(path: Path) -> Answer:
    """Ask once."""
    try:
        with _dial(path) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(256)
    except TimeoutError:
        return Answer.SILENT
    except OSError:
        return Answer.ABSENT
    if not reply:  # it closed the connection: it is ending
        return Answer.ABSENT
    return Answer.LOADING if reply.startswith(b"-LOADING") else Answer.READY


def listens(path: Path) -> bool:
    """True if somebody takes connections there, whatever he is busy with."""
    try:
        _dial(path).close()
    except TimeoutError:  # more wait than it can take at a time
        return True
    except OSError:
        return False
    return True


def unsaved(path: Path, *, deadline: float) -> str:
    """Wait until it has given to its file whatever it has answered. Empty then, else its own words why it can't.

    What it can't write it tries again every second, and takes no more writes meanwhile.
    """
    while True:
        try:
            persistence, ready = _asked(path, b"INFO persistence"), _asked(path, b"PING")
        except TimeoutError:
            persistence = ready = b""
        except OSError:  # it is gone
            return ""
        if ready.startswith(b"-MISCONF"):
            return ready[1:].decode(errors="replace").splitlines()[0]
        waiting = re.search(rb"aof_buffer_length:(\d+)", persistence)
        if persistence and (not waiting or waiting[1] == b"0"):  # not told: somebody has switched the file off
            return ""
        if time.monotonic() > deadline:
            return "it has not said in time that they are in its file"
        time.sleep(_POLL_S)


def shut_down(path: Path) -> str:
    """Order it to end. Empty when it obeys, else what it said. It may still be at it when this returns.

    The append-only file is flushed to the disk first. A snapshot would be written at length and never read:
    a server with an append-only file loads that.
    """
    try:
        with _dial(path) as connection:
            connection.sendall(b"SHUTDOWN NOSAVE\r\n")
            return connection.recv(256).decode(errors="replace").strip()
    except TimeoutError:
        return ""  # flushing takes it long
    except OSError as exc:
        return str(exc)


def _asked(path: Path, command: bytes) -> bytes:
    """The whole answer: nothing is sent after it."""
    with _dial(path) as connection:
        connection.sendall(command + b"\r\nQUIT\r\n")
        return b"".join(iter(lambda: connection.recv(65536), b""))


def _dial(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection
