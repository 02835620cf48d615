"""Asks a server on its unix socket how it is, and orders it to end. Called by ``share`` and ``process``.

Plain sockets do, because the drivers are built upon this package.
"""

from __future__ import annotations

import enum
import re
import socket
import time
from pathlib import Path

_POLL_S = 0.05
_ANSWER_S = 1.0  # a server that is busy with a slow script answers later; the caller asks again


class Answer(enum.Enum):
    """The answer to a PING."""

    READY = "it answers"
    LOADING = "it is reading its data"
    SILENT = "it takes connections and says nothing"
    ABSENT = "nobody listens"


def ping(path: Path) -> Answer:
    """Asks once."""
    try:
        with _dial(path) as connection:
            connection.sendall(b"PING\r\n")
            reply = connection.recv(256)
    except TimeoutError:
        return Answer.SILENT
    except OSError:
        return Answer.ABSENT
    if not reply:  # closed without an answer: the server is ending
        return Answer.ABSENT
    return Answer.LOADING if reply.startswith(b"-LOADING") else Answer.READY


def listens(path: Path) -> bool:
    """True if somebody listens there, however busy."""
    try:
        _dial(path).close()
    except TimeoutError:  # its queue of connections is full
        return True
    except OSError:
        return False
    return True


def unsaved(path: Path, *, deadline: float) -> str:
    """Waits until every write that the server has answered is in its file. Returns the reason if one is not, else "".

    A server that can't write tries again every second, and refuses writes meanwhile.
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
        if persistence and (not waiting or waiting[1] == b"0"):  # no length: somebody has switched the file off
            return ""
        if time.monotonic() > deadline:
            return "it did not say in time that they are in its file"
        time.sleep(_POLL_S)


def shut_down(path: Path) -> str:
    """Orders the server to end. Returns "" if it obeys, else its answer. It may still be ending then.

    It flushes the append-only file first. It writes no snapshot, which would take long and never be read: a server with
    an append-only file loads that.
    """
    try:
        with _dial(path) as connection:
            connection.sendall(b"SHUTDOWN NOSAVE\r\n")
            return connection.recv(256).decode(errors="replace").strip()
    except TimeoutError:
        return ""  # it flushes a large file
    except OSError as exc:
        return str(exc)


def _asked(path: Path, command: bytes) -> bytes:
    """The whole answer to a command."""
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
