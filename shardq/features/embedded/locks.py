"""Takes and drops two file locks: the users' lock says who uses the server, the server's lock whether it lives.

The kernel drops a lock when its holders die. A ``flock`` belongs to the *opening* of a file, not to a process. So a
forked child holds its parent's users' lock until both have closed it; and a server that inherits the opening of its
lock holds the lock for as long as it lives, whatever becomes of the process that started it.

Called by ``share``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardq.core import forks

_POLL_S = 0.01


class _Passing:
    """The descriptors that a thread is just using. Children that another thread forks meanwhile close them."""

    def __init__(self) -> None:
        self.fds: set[int] = set()
        forks.watch(self, _Passing._forked)

    def _forked(self) -> None:
        while self.fds:
            os.close(self.fds.pop())


_passing = _Passing()


def shared(path: Path, *, deadline: float) -> int | None:
    """Opens the file and locks it shared, until ``keep`` or ``drop``. Returns None if another process held it
    exclusively until the deadline.
    """
    fd = _open(path)
    while not _try(fd, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            drop(fd)
            return None
        time.sleep(_POLL_S)
    return fd


def keep(fd: int) -> None:
    """Keeps the descriptor open in forked children from now on."""
    _passing.fds.discard(fd)


def drop(fd: int) -> None:
    """Closes the descriptor and does not unlock the file: a process that inherited it keeps the lock."""
    _passing.fds.discard(fd)
    os.close(fd)


def drop_removed(fd: int) -> bool:
    """Like ``drop``, for a file that was removed. Returns True if no other process has it open. Works on Linux only."""
    try:
        fresh = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    finally:
        drop(fd)
    try:
        return _try(fresh, fcntl.LOCK_EX)
    finally:
        os.close(fresh)


def path_of(fd: int, path: Path) -> Path | None:
    """The present path of a file that was opened by ``path``; it may have been moved. None if it was removed."""
    mine = os.fstat(fd)
    candidates = [path]
    with contextlib.suppress(OSError):
        candidates.append(Path(f"/proc/self/fd/{fd}").readlink())
    for each in candidates:
        with contextlib.suppress(OSError):
            if os.path.samestat(each.stat(), mine):
                return each
    return None


@contextmanager
def alone(path: Path, *, deadline: float = 0.0) -> Iterator[int | None]:
    """Holds the file exclusively. Yields its descriptor, or None if others held it until the deadline."""
    fd = _open(path)
    try:
        while not (held := _try(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        yield fd if held else None
    finally:
        drop(fd)


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    _passing.fds.add(fd)
    return fd


def _try(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
