"""Entering and leaving an embedded server: found or started on the way in, shut down by the last one out.

Every user holds the users' lock shared. Who leaves lets go of it and tries, on a fresh opening, to take it
alone: if that works nobody else uses the server, and nobody can come in before it has ended. Who enters
takes the lock first and looks for a server second, so the one found stays.
"""

from __future__ import annotations

import atexit
import logging
import time
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args
from urllib.parse import quote

from shardq.drivers import descriptors
from shardq.embedded import locks
from shardq.embedded.launch import launch, misfit
from shardq.embedded.places import Place, default_path
from shardq.embedded.probe import Answer, ping, shut_down
from shardq.errors import EmbeddedFault, InvalidOption

Fsync = Literal["everysec", "always"]

_POLL_S = 0.01
_END_S = 20.0  # flushing the append-only file to a slow disk

_log = logging.getLogger(__name__)


class Embedded:
    """One use of an embedded server, made by ``enter``. As a context manager it leaves at the end.

    A process that ends without leaving leaves at its exit; one that is killed just stops counting. A forked
    child counts as a user of its own until it, too, has left or ended.
    """

    def __init__(self, place: Place, socket: Path, lock: int, *, started: bool) -> None:
        self.path = place.folder
        self.socket = socket
        self.url = f"unix://{quote(str(socket))}"
        self.started = started
        """True when this call started the server, False when it was found running."""
        self._place = place
        self._lock = [lock]  # empty once we have left; popped, so that of two threads only one leaves
        atexit.register(self.leave)

    def __repr__(self) -> str:
        return f"<Embedded {self.path} {'in use' if self._lock else 'left'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def leave(self) -> None:
        """Stop using the server; the last user shuts it down and waits until it has ended. Idempotent.

        Never raises: a server that stays up is found by the next who enters, and its data is safe.
        """
        try:
            lock = self._lock.pop()
        except IndexError:
            return
        atexit.unregister(self.leave)
        locks.drop(lock)
        try:
            self._shut_down_if_last()
        except OSError as exc:
            _log.warning("the embedded server in %s may still run: %s", self.path, exc)

    def _shut_down_if_last(self) -> None:
        with locks.alone(self._place.users_lock) as last:
            if last is None:
                return
            said = shut_down(self.socket)
            with locks.alone(self._place.server_lock, deadline=time.monotonic() + _END_S) as ended:
                if ended is None:
                    _log.warning(
                        "the embedded server in %s did not end within %.0f s (%s), and stays up",
                        self.path,
                        _END_S,
                        said or "it was told to",
                    )


def enter(path: Path | None = None, *, fsync: Fsync = "everysec", timeout: float = 30.0) -> Embedded:
    """Use the server of a directory, ``default_path()`` unless given; start it if nobody has.

    ``fsync`` is how often it writes to the disk: ``everysec`` may lose the last second or two when the power
    fails (never when a process dies), ``always`` loses nothing and is slower. It counts for the one who
    starts the server; who finds it running takes it as it is.
    """
    if fsync not in get_args(Fsync):
        raise InvalidOption(f"fsync is {fsync!r}; it can be {' or '.join(map(repr, get_args(Fsync)))}")
    place = Place.at(path or default_path())
    deadline = time.monotonic() + timeout
    try:
        lock = locks.shared(place.users_lock, deadline=deadline)
    except OSError as exc:
        advice = descriptors.REMEDY if descriptors.scarce(exc) else f"whose is {place.folder}?"
        raise EmbeddedFault(f"{place.users_lock} cannot be opened: {exc}; {advice}") from exc
    if lock is None:
        raise EmbeddedFault(
            f"the embedded server in {place.folder} has been ending for {timeout:g} s; "
            f"{place.last_words()}\nwait for it, or end it: its process id is in {place.pid}"
        )
    try:
        socket, started = _serving(place, fsync=fsync, deadline=deadline)
        use = Embedded(place, socket, lock, started=started)
    except BaseException:
        locks.drop(lock)
        raise
    locks.keep(lock)
    return use


def _serving(place: Place, *, fsync: str, deadline: float) -> tuple[Path, bool]:
    """The socket of a server that answers, and whether we started it. We hold the users' lock."""
    started = False
    while True:
        socket = place.socket()
        answer = ping(socket) if socket else Answer.ABSENT
        if socket and answer is Answer.READY:
            return socket, started
        # Of many who enter at once, one gets this lock and starts the server; the server then holds it.
        with locks.alone(place.server_lock) as free:
            if free is not None:
                if started:
                    raise EmbeddedFault(
                        misfit(place)
                        or f"the embedded server in {place.folder} ended at its start; {place.last_words()}"
                    )
                launch(place, fsync=fsync, lock=free)
                started = True
        if time.monotonic() > deadline:
            raise EmbeddedFault(
                f"the embedded server in {place.folder} lives but cannot be used: {answer.value}; "
                f"{place.last_words()}\nwait longer (timeout=), or end it and try again: its process id is "
                f"in {place.pid}"
            )
        time.sleep(_POLL_S)
