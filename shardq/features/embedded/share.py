"""Enters and leaves an embedded server: the first user starts it, the last one shuts it down. Called by the engine.

Every user holds the users' lock shared. A user that leaves drops it and tries to take it exclusively, on a fresh
opening of the file. If that works, there is no other user, and none can enter before the server has ended. A user that
enters takes the lock first and looks for a server second, so the server it finds stays.

Drivers ask ``locate`` where the server is when a connection fails. The first to ask restarts a server that has died,
and replaces one whose socket was removed.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Self, get_args
from urllib.parse import quote

from shardq.core import forks
from shardq.core.drivers import descriptors
from shardq.core.model.printable import quoted
from shardq.errors import EmbeddedFault, InvalidOption
from shardq.features.embedded import locks
from shardq.features.embedded.places import Place, default_path
from shardq.features.embedded.process import Answer, Process, end_cut_off, listens, ping, shut_down, unsaved
from shardq.features.embedded.program import launch, misfit

Fsync = Literal["everysec", "always"]

_POLL_S = 0.01
_END_S = 20.0  # for a server that flushes its append-only file to a slow disk
_LOCATE_S = 1.0  # a server listens sooner, even before it reads its data; drivers ask again
_RESTART_S = 3.0  # at least, between two restarts of a server that ends at each start, as for want of memory or disk

_log = logging.getLogger("shardq.embedded")


class Embedded:
    """One use of an embedded server, made by ``enter``. As a context manager it leaves at the end.

    A process that has not left leaves at its exit. One that is killed stops counting as a user. A forked child is a
    user of its own until it has left or ended, too.
    """

    def __init__(self, place: Place, socket: Path, lock: int, *, started: bool, fsync: Fsync) -> None:
        self.path: Path = place.folder
        self.socket = socket
        self.url: str = f"unix://{quote(os.fsencode(socket))}"
        self.started = started
        """True when this call started the server, False when it was found running."""
        self._place = place
        self._fsync = fsync
        self._process = Process.of(place)
        self._lock = [lock]  # empty after leaving; popped, so that only one of two threads leaves
        atexit.register(self.leave)
        self._forked()
        forks.watch(self, Embedded._forked)

    def _forked(self) -> None:
        self._changing = threading.RLock()
        """Held while leaving and while locating: after leaving, no server is started. Reentrant, because the handler of
        a signal may leave while its own thread locates."""

    def __repr__(self) -> str:
        return f"<Embedded {self.path} {'in use' if self._lock else 'left'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.leave()

    def locate(self) -> str:
        """Returns the present socket of the server. Restarts a server that has ended, and ends and replaces one whose
        socket was removed. Raises EmbeddedFault while there is none.

        Called by drivers whenever a connection fails. Does not wait for a server that is busy or reading its data.
        """
        with self._changing:
            if not self._lock:
                return str(self.socket)
            deadline = time.monotonic() + _LOCATE_S
            try:
                socket, started = _serving(
                    self._place, fsync=self._fsync, deadline=deadline, found=listens, every_s=_RESTART_S
                )
            except OSError as exc:
                raise _unusable(self._place, exc) from exc
            self._process = Process.of(self._place) or self._process
            if started:
                _log.warning("the embedded server in %s had ended, and was started again", self.path)
            if not self._lock:  # left meanwhile, in a signal's handler
                _shut_down_if_last(self._place)
        return str(socket)

    def leave(self) -> None:
        """Stops using the server; the last user shuts it down and waits until it has ended. Idempotent.

        A server that can't write to its disk stays up, because it alone has the last writes; a warning says so. Never
        raises: the next user finds a server that stays up.
        """
        with self._changing:
            try:
                lock = self._lock.pop()
            except IndexError:
                return
            atexit.unregister(self.leave)
            try:
                at = locks.path_of(lock, self._place.users_lock)
                if at is not None:
                    locks.drop(lock)
                    _shut_down_if_last(Place(at.parent))
                elif locks.drop_removed(lock) and self._process is not None:
                    # the directory is gone, so no process can find the server or its data any more
                    self._process.end_if(lambda: True, wait_s=_END_S)
            except OSError as exc:
                _log.warning("the embedded server in %s may still run: %s", self.path, exc)


def _shut_down_if_last(place: Place) -> None:
    with locks.alone(place.users_lock) as last:
        if last is None:
            return
        deadline = time.monotonic() + _END_S
        socket = place.socket()
        if socket is not None and (why := unsaved(socket, deadline=deadline)):
            _log.warning(
                "the embedded server in %s stays up, because its last writes are only in its memory: %s; if its disk "
                "is full, make room, and it writes them by itself; then open and close the engine again to end it; its "
                "process id is in %s",
                place.folder,
                why,
                place.pid,
            )
            return
        said = shut_down(socket) if socket is not None else "its socket is not known"
        if said and end_cut_off(place):
            said = ""
        with locks.alone(place.server_lock, deadline=deadline) as ended:
            if ended is None:
                _log.warning(
                    "the embedded server in %s did not end within %.0f s (%s), and stays up; its process id is in %s",
                    place.folder,
                    _END_S,
                    said or "it was told to",
                    place.pid,
                )


def enter(path: Path | None = None, *, fsync: Fsync = "everysec", timeout: float = 30.0) -> Embedded:
    """Uses the server of a directory, by default ``default_path()``; starts it if it does not run.

    ``fsync`` is how often the server writes to the disk. ``everysec`` may lose the last second or two when the power
    fails, or when the server is killed and the disk is very slow; ``always`` loses nothing and is slower. A server that
    runs keeps the ``fsync`` it was started with, and one that was killed with ``always`` is restarted with it.
    """
    if fsync not in get_args(Fsync):
        raise InvalidOption(f"fsync is {quoted(fsync)}; it can be {' or '.join(map(repr, get_args(Fsync)))}")
    place = Place.at(path or default_path())
    deadline = time.monotonic() + timeout
    try:
        lock = locks.shared(place.users_lock, deadline=deadline)
    except OSError as exc:
        raise _unusable(place, exc) from exc
    if lock is None:
        raise EmbeddedFault(
            f"the embedded server in {place.folder} has been ending for {timeout:g} s; "
            f"{place.last_words()}\nwait for it, or end it: its process id is in {place.pid}"
        )
    try:
        socket, started = _serving(
            place, fsync=fsync, deadline=deadline, found=lambda socket: ping(socket) is Answer.READY
        )
        use = Embedded(place, socket, lock, started=started, fsync=fsync)
    except BaseException as exc:
        locks.drop(lock)
        if isinstance(exc, OSError):
            raise _unusable(place, exc) from exc
        raise
    locks.keep(lock)
    return use


def _unusable(place: Place, exc: OSError) -> EmbeddedFault:
    advice = "it is for one user alone: choose one of your own, that you may write to: embedded:///path"
    if descriptors.scarce(exc):
        advice = descriptors.REMEDY
    return EmbeddedFault(f"the directory {place.folder} of the embedded server cannot be used: {exc}; {advice}")


def _serving(
    place: Place, *, fsync: str, deadline: float, found: Callable[[Path], bool], every_s: float = 0.0
) -> tuple[Path, bool]:
    """Returns the socket of the server, and True if this call started it. The caller holds the users' lock.

    ``found`` says if a server is on a socket. One that was started less than ``every_s`` ago is not started again.
    """
    started = False
    while True:
        # When many enter at once, one gets this lock and starts the server, which holds the lock from then on.
        with locks.alone(place.server_lock) as free:
            if free is not None:
                ago_s = place.started_s()
                if started or 0 <= ago_s < every_s:
                    ended = "ended at its start" if started else f"was started {ago_s:.1f} s ago and has ended"
                    raise EmbeddedFault(
                        misfit(place) or f"the embedded server in {place.folder} {ended}; {place.last_words()}"
                    )
                launch(place, fsync=fsync, lock=free)
                started = True
        socket = place.socket()
        if socket is not None and found(socket):
            return socket, started
        if socket is None or not listens(socket):
            end_cut_off(place)
        if time.monotonic() > deadline:
            answer = ping(socket) if socket is not None else Answer.ABSENT
            raise EmbeddedFault(
                f"the embedded server in {place.folder} lives but cannot be used: {answer.value}; "
                f"{place.last_words()}\nwait longer (timeout=), or end it and try again: its process id is "
                f"in {place.pid}"
            )
        time.sleep(_POLL_S)
