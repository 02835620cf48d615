"""Two file locks, which the kernel drops when their holders die: who uses the server, and whether it lives.

A ``flock`` belongs to the *opening* of a file, not to a process. A forked child therefore holds its parent's
lock until both have closed it, which is what we want of the users' lock; and a server that inherits an
opening holds its lock for as long as it lives, whatever becomes of the process that started it.

Called by ``share`` and ``launch``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardq import forks

_POLL_S = 0.01


class _Passing:
    """The descriptors that a thread is just using: not for children that another thread happens to fork meanwhile."""

    def __init__(self) -> None:
        self._fds: set[int] = set()
        forks.watch(self, _Passing.forked)

    def add(self, fd: int) -> None:
        self._fds.add(fd)

    def discard(self, fd: int) -> None:
        self._fds.discard(fd)

    def forked(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


_passing = _Passing()


def shared(path: Path, *, deadline: float) -> int | None:
    """The file, opened and locked together with others; None if somebody held it exclusively all the time.

    To be followed by ``keep`` or ``drop``.
    """
    fd = _open(path)
    while not _try(fd, fcntl.LOCK_SH):
        if time.monotonic() > deadline:
            drop(fd)
            return None
        time.sleep(_POLL_S)
    return fd


def keep(fd: int) -> None:
    """Somebody has it from now on: children of a fork have it, too."""
    _passing.discard(fd)


def drop(fd: int) -> None:
    """Close it, not unlock it: a process that inherited it keeps the lock."""
    _passing.discard(fd)
    os.close(fd)


def drop_removed(fd: int) -> bool:
    """Like ``drop``, for a file that has no path any more. Returns True if nobody else has it. Linux alone can tell."""
    try:
        fresh = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    finally:
        drop(fd)
    try:
        return _try(fresh, fcntl.LOCK_EX)
    finally:
        os.close(fresh)


def path_of(fd: int, path: Path) -> Path | None:
    """Where the file is now that was opened by this path: it may have been moved, or its directory. None: removed."""
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
    """Hold the file exclusively: its descriptor, or None if others held it until the deadline."""
    fd = _open(path)
    try:
        while not (held := _try(fd, fcntl.LOCK_EX)) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        yield fd if held else None
    finally:
        drop(fd)


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    _passing.add(fd)
    return fd


def _try(fd: int, how: int) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
