"""What a server on a unix socket answers, in plain sockets: this package comes before the drivers.

Called by ``share``.
"""

from __future__ import annotations

import enum
import socket
from pathlib import Path

_ANSWER_S = 1.0  # a server that is busy with one slow script answers later: the caller asks again


class Answer(enum.Enum):
    """What came of a PING."""

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


def _dial(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_ANSWER_S)
        connection.connect(str(path))
    except BaseException:
        connection.close()
        raise
    return connection
