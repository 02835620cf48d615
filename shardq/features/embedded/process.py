"""The server that runs: asks it on its unix socket, by plain sockets, as the drivers are built upon this package; finds
its process, and ends it when no connection can be made any more. Called by ``share``.

The server's socket, or its whole directory, may be removed, as by a cleaner of /tmp. The server and its connections
live on, but no new one can be made.

A process id in a file is no proof: the process may have ended long ago, and another one have its number. A process is
taken for the server only if the kernel says that it has the server's lock file open and listens on the server's socket.
A pidfd is opened before that check and gets the signal, so it can't reach another process. Where the kernel can't say
this (no /proc, or a process of another container), nothing is ended.
"""

from __future__ import annotations

import enum
import os
import re
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shardq.features.embedded.places import Place

_LISTENING = b"00010000"  # flags of a listening socket in /proc/net/unix
_POLL_S = 0.05
_ANSWER_S = 1.0  # a server that is busy with a slow script answers later; the caller asks again


@dataclass(frozen=True, slots=True)
class Process:
    """A process that may be the server of a directory."""

    pid: int
    place: Place
    lock: os.stat_result  # the state of the server's lock file

    @classmethod
    def of(cls, place: Place) -> Self | None:
        """The process whose id is in the server's file, whatever it is by now."""
        try:
            return cls(int(place.pid.read_text()), place, place.server_lock.stat())
        except (OSError, ValueError):
            return None

    def end_if(self, condition: Callable[[], bool], *, wait_s: float = 0.0) -> bool:
        """Sends SIGTERM if the process is the server and the condition holds; the server saves its data then.

        Returns True if the signal was sent and, with ``wait_s``, the process has ended in that time.
        """
        try:
            process = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return False
        try:
            if not self._is_server() or not condition():
                return False
            signal.pidfd_send_signal(process, signal.SIGTERM)
            # not select.select(), which fails for descriptors past 1,023
            ended = select.poll()
            ended.register(process, select.POLLIN)
            return not wait_s or bool(ended.poll(wait_s * 1000))
        except (AttributeError, OSError):
            return False
        finally:
            os.close(process)

    def _is_server(self) -> bool:
        """True if the process has the server's lock file open, and listens on the server's socket."""
        listening = set(self._listening())
        has_lock = has_socket = False
        for each in Path(f"/proc/{self.pid}/fd").iterdir():
            try:
                found = each.stat()
            except OSError:  # closed meanwhile
                continue
            has_lock |= os.path.samestat(found, self.lock)
            has_socket |= found.st_ino in listening and str(each.readlink()).startswith("socket:")
        return has_lock and has_socket

    def _listening(self) -> Iterator[int]:
        """The inodes of listening sockets with the server's name, in the network namespace of the process."""
        for line in Path(f"/proc/{self.pid}/net/unix").read_bytes().splitlines():
            fields = line.split(maxsplit=7)
            if len(fields) == 8 and fields[3] == _LISTENING and self.place.is_socket(Path(os.fsdecode(fields[7]))):
                yield int(fields[6])


def end_cut_off(place: Place) -> bool:
    """Ends the server if its socket was removed. Returns True if it was told to end."""

    def unreachable() -> bool:
        # the server has begun to listen, and listens until its end: so its socket was removed if none answers
        return (at := place.socket()) is None or not listens(at)

    process = Process.of(place)
    return process is not None and process.end_if(unreachable)


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
    """True if a server listens there, however busy."""
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
        if persistence and (not waiting or waiting[1] == b"0"):  # no length: the file was switched off
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
