"""Finds the server's process, and ends it when nobody can connect to it any more. Called by ``share``.

Somebody who tidies up /tmp may remove the server's socket, or its whole directory. The server lives on, and so do its
connections, but nobody can make a new one.

A process id in a file is no proof: the process may have ended long ago, and another one have its number. A process is
taken for the server only if the kernel says that it has the server's lock file open and listens on the server's socket.
A pidfd is opened before that check and gets the signal, so it can't reach another process. Where the kernel can't say
this (no /proc, or a process of another container), nothing is ended.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shardq.features.embedded.places import Place
from shardq.features.embedded.probe import listens

# Flags of a listening socket in /proc/net/unix.
_LISTENING = b"00010000"


@dataclass(frozen=True, slots=True)
class Process:
    """A process that may be the server of a directory."""

    pid: int
    place: Place
    lock: os.stat_result
    """The state of the server's lock file."""

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
        # the server has begun to listen, and listens until its end: so its socket was removed if nobody answers
        socket = place.socket()
        return socket is None or not listens(socket)

    process = Process.of(place)
    return process is not None and process.end_if(unreachable)
