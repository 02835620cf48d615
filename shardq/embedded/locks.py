"""Two file locks, which the kernel drops when their holders die: who uses the server, and whether it lives.

A ``flock`` belongs to the *opening* of a file, not to a process. A forked child therefore holds its parent's
lock until both have closed it, which is what we want of the users' lock; and a server that inherits an
opening holds its lock for as long as it lives, whatever becomes of the process that started it.

Called by ``share`` and ``launch``.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_POLL_S = 0.01

_exclusive: set[int] = set()
"""The exclusive locks of this process: not for children that another thread happens to fork meanwhile."""


def shared(path: Path, *, deadline: float) -> int | None:
    """The file, opened and locked together with others; None if somebody held it exclusively all the time."""
    fd = _open(path)
    while not _try(fd, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            os.close(fd)
            return None
        time.sleep(_POLL_S)
    return fd


@contextmanager
def alone(path: Path, *, deadline: float = 0.0) -> Iterator[int | None]:
    """Hold the file exclusively: its descriptor, or None if others held it until the deadline.

    At the end our descriptor is closed, not unlocked: a process that inherited it keeps the lock.
    """
    fd = _open(path)
    _exclusive.add(fd)
    try:
        while not (held := _try(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        yield fd if held else None
    finally:
        _exclusive.discard(fd)
        os.close(fd)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _try(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _close_in_child() -> None:
    while _exclusive:
        os.close(_exclusive.pop())


os.register_at_fork(after_in_child=_close_in_child)
