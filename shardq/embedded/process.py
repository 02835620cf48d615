"""Which process the server is, and telling it to end when nobody can connect to it any more. Called by ``share``.

Somebody who tidies up /tmp may remove its socket, or its whole directory: it lives, and those who are connected go on,
but nobody else gets in.

A process id in a file says little: the process may have ended long ago, and another one have its number. So a process
is taken for the server only if the kernel says that it has the server's own lock file open and listens on the server's
own socket, and it is held by a descriptor from before that look until the signal. Where the kernel can't say that (no
/proc, or another container's process) nothing is ended.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from shardq.embedded.places import Place
from shardq.embedded.probe import listens

# Flags of a listening socket in /proc/net/unix.
_LISTENING = b"00010000"


@dataclass(frozen=True, slots=True)
class Process:
    """The server of a directory, as long as that is there to ask."""

    pid: int
    place: Place
    lock: os.stat_result
    """The state of the server's lock file."""

    @classmethod
    def of(cls, place: Place) -> Self | None:
        """The one whose id is written down, whatever it is by now."""
        try:
            return cls(int(place.pid.read_text()), place, place.server_lock.stat())
        except (OSError, ValueError):
            return None

    def end_if(self, condition: Callable[[], bool], *, wait_s: float = 0.0) -> bool:
        """Tell it to end, if it is the server and the condition holds then; it saves its data, as at an order.

        True if it was told, and has ended where that is waited for.
        """
        try:
            process = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return False
        try:
            if not self._is_server() or not condition():
                return False
            signal.pidfd_send_signal(process, signal.SIGTERM)
            # not select.select(), which can't look at descriptors past 1,023
            ended = select.poll()
            ended.register(process, select.POLLIN)
            return not wait_s or bool(ended.poll(wait_s * 1000))
        except (AttributeError, OSError):
            return False
        finally:
            os.close(process)

    def _is_server(self) -> bool:
        """True if it holds the lock of the directory's server, and listens on a socket of that name."""
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
        """Inodes of the sockets with the server's name on which somebody listens, as this process sees them."""
        for line in Path(f"/proc/{self.pid}/net/unix").read_bytes().splitlines():
            fields = line.split(maxsplit=7)
            if len(fields) == 8 and fields[3] == _LISTENING and self.place.is_socket(Path(os.fsdecode(fields[7]))):
                yield int(fields[6])


def end_cut_off(place: Place) -> bool:
    """Tell the server to end if its socket was removed. True if it was told."""

    def unreachable() -> bool:
        # asked of a server that has begun to listen, which it does until its end
        socket = place.socket()
        return socket is None or not listens(socket)

    process = Process.of(place)
    return process is not None and process.end_if(unreachable)
