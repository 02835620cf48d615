"""The spool of one engine: knows whether Redis is away, stores commands meanwhile, and replays them.

**Order.** From the first command that could not reach a server, ``away`` is true, and every command of this engine goes
to the file until all that it spooled is sent. Commands that were under way at the same time have no order.

**The end of an outage** is when all that this process spooled is sent: it stays in the file until it is confirmed, and
the thread goes on until then. The end would never come if commands were stored faster than they are sent. So those that
are just being stored are held back while a page is sent, or more pages if those that are let in between are too many.
When all of this process is sent, what was held back goes to the servers itself.

**Replaying.** Of the processes with commands in the file one at a time holds the lock beside it, and removes each
command when replicas and disk have what it did; others look whether theirs are sent, and then whether they are gone: if
the one that sent them dies before that, another sends them again. A pass skips shards that do not answer.

**Storing.** The first thread stores what all others have brought meanwhile: one transaction, one write to the disk.

**A file that takes nothing** (a full disk, a file that is full, read-only, broken or gone) stops no command that a
server may take: ``add`` lets it go there, unless the file holds an earlier command on its id, or the last pass could
reach no server. Until the replay has written the file, commands do not try it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from shardq.core import forks
from shardq.core.model.printable import quoted
from shardq.errors import (
    EngineClosed,
    InvalidOption,
    ShardqError,
    SpoolFault,
    TooManyOpenFiles,
    Unavailable,
)
from shardq.features.embedded import locks
from shardq.relay.file import PAGE_ROWS, SpoolFile
from shardq.relay.mover import Mover
from shardq.relay.report import SpoolStats
from shardq.relay.row import Command
from shardq.relay.sending import AWAY

log: logging.Logger = logging.getLogger("shardq.spool")

LEAST_BYTES = 64 << 10

LAST_TRIP_S = 1.0  # the most that the trips of a layer may take while commands are held back
QUIET_S = 0.5  # how long another process may make no progress until commands are held back for it no more
HELD_S = 10.0  # the longest time for which commands are held back, if the engine's timeout is not shorter

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
"""Between two attempts while Redis is away; each is twice as long as the one before."""

LOOK_S = 0.05  # between two looks at what another process replays
CLOSE_S = 1.0  # how long close lets the replay go on
CONFIRM_S = 4.0  # the same where all is sent, and is to be confirmed
END_S = 6.0  # how long it then waits for the thread, which may be asking the servers


@dataclass(slots=True, eq=False)
class _Ticket:
    """Commands of one call on their way into the file."""

    commands: Sequence[Command]
    forced: bool  # true if they must be stored: they were sent already, and may have been executed
    stored: Future[bool] = field(default_factory=Future)
    """True when they are in the file; False if they can go to the servers."""


class Spool:
    """The spool of one engine, in one process. Threads share it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        engine: str,
        shards: int | None,
        limit: int,
        timeout: float,
        mover: Callable[[SpoolFile], Mover],
    ) -> None:
        """Opens the file, or makes it. Raises SpoolFault if that can't be done."""
        self.path: Path = _checked_path(path)
        self.away: bool = False  # true while commands go to the file
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < LEAST_BYTES:
            raise InvalidOption(f"spool_bytes={quoted(limit)} is not possible; give bytes, from {LEAST_BYTES:,}")
        self._engine = engine
        self._timeout = timeout
        self._held_s = min(HELD_S, timeout)
        self._mover = mover
        self._file = SpoolFile(self.path, engine=engine, shards=shards or 0, limit=limit)
        self._last = 0  # the number of the last command that this process must wait for
        self._first = 0  # the number of the first command in the file at the last look
        self._added = 0  # commands that this process has stored
        self._closed = False
        self._reset()
        self._find(self._file.last())
        self._file.close()  # until it is needed: the process may fork first
        forks.watch(self, Spool._reset)  # the child waits for what the parent has spooled, and the parent replays it

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # held while commands are stored, and by the replay while it holds them back
        self._tickets: list[_Ticket] = []
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._threads: ThreadPoolExecutor | None = None
        self._problem = ""
        self._since = time.monotonic()
        self._met: tuple[float, ShardqError] | None = None  # when a command met servers that were away, and the error
        self._fault: SpoolFault | None = None  # the reason why the file took nothing when it was last tried
        self._skipped = False  # true from a fault until the replay has written the file: commands go past it
        self._reached = True  # false if the last replay, or the command that began the outage, could reach no server
        self._pages = 1  # how many are replayed while commands are held back

    def __repr__(self) -> str:
        return f"<Spool {str(self.path)!r}: {'in use' if self.away else 'Redis is there'}>"

    def _find(self, last: int) -> None:
        """Goes on from the number of the last command that the file holds."""
        if last:
            with self._lock:
                self._last, self.away = last, True
            log.warning("the spool %s holds commands of an earlier process, which go first", self.path)

    def takes(self, error: ShardqError) -> bool:
        """True if what met this error at a server is spooled."""
        return isinstance(error, AWAY) and not isinstance(error, TooManyOpenFiles)

    def check_since(self, began: float) -> None:
        """Raises what another command has met since then: one that waited for it to connect need not try the same."""
        if self._met is not None and self._met[0] >= began:
            raise Unavailable(str(self._met[1])) from self._met[1]

    def resume(self) -> None:
        """Replays what an earlier process has left, which goes first: called when the engine opens."""
        with self._lock:
            self._closed = False
        if not self.away:
            try:
                self._find(self._file.last())
            except SpoolFault as exc:
                with self._lock:
                    self._last, self.away = 0, True  # the replay finds what there is, when the file can be read
                    self._skip(exc, reached=True)
        if self.away:
            with self._lock:
                self._start()

    def close(self) -> None:
        """Ends the replay when the file is empty, or after a second. What is left waits for the next process that opens
        the file.
        """
        with self._lock:
            self._closed = True
            thread, stop = self._thread, self._stop
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        if thread is not None:
            thread.join(CLOSE_S if self.away else CONFIRM_S)
            stop.set()
            thread.join(END_S)
        self._file.close()
        if (self.away or thread is not None) and (left := self._left()):
            log.warning("%s commands are left in the spool %s for the next process that opens it", left, self.path)

    def _left(self) -> str:
        with contextlib.suppress(SpoolFault):
            waiting = self._file.stats().waiting
            self._file.close()
            return f"{waiting:,}" if waiting else ""
        return "some"

    # ---- storing

    def add(self, commands: Sequence[Command], *, lost: ShardqError | None = None) -> bool:
        """Stores commands. Returns False, with nothing stored, if they can go to the servers by now, or must, as the
        file takes nothing. Raises SpoolFault if they can't be stored, and no server can be reached or may have them
        yet.

        ``lost``: the error that they met at the servers; they may have been executed, and are stored in any case.
        """
        ticket = self._bring(commands, lost)
        self._store()
        return ticket.stored.result()

    def submit(self, commands: Sequence[Command], *, lost: ShardqError | None = None) -> Future[bool]:
        """Does that in a thread, for an event loop, which must not wait for a disk."""
        return self._bring(commands, lost, in_thread=True).stored

    def _bring(self, commands: Sequence[Command], lost: ShardqError | None, *, in_thread: bool = False) -> _Ticket:
        if isinstance(lost, TooManyOpenFiles):
            raise lost  # this process's own fault
        ticket = _Ticket(commands, forced=lost is not None)
        ticket.stored.set_running_or_notify_cancel()  # it can't be cancelled any more
        with self._lock:
            if self._closed:
                raise EngineClosed("the engine is closed: make another, or open() it again")
            if lost is not None:
                self._problem = str(lost)
                self._met = time.monotonic(), lost
                if not self.away:
                    self.away, self._since = True, time.monotonic()
                    self._reached = False
                    fields = {"error": type(lost).__name__}
                    log.warning(
                        "Redis can't be reached, commands go to the spool %s: %s", self.path, lost, extra=fields
                    )
            self._tickets.append(ticket)
            if in_thread:
                if self._threads is None:
                    self._threads = ThreadPoolExecutor(1, thread_name_prefix="shardq-spool")
                self._threads.submit(self._store)
        return ticket

    def _store(self) -> None:
        """Stores what has been brought, unless another thread has."""
        tickets: list[_Ticket] = []
        with self._writing:
            try:
                self._store_all(tickets)
            except BaseException as exc:
                # Also an interrupt, at any point: the others wait for their tickets.
                error = exc if isinstance(exc, ShardqError) else SpoolFault(f"the spool {self.path} failed: {exc!r}")
                for ticket in tickets:
                    if not ticket.stored.done():
                        ticket.stored.set_exception(error)
                with self._lock:
                    self._start()
                if error is not exc:
                    raise

    def _store_all(self, tickets: list[_Ticket]) -> None:
        """Takes what has been brought into ``tickets``, and stores it. ``_writing`` is held."""
        with self._lock:
            tickets += self._tickets
            self._tickets = []
            # What was sent already is stored in any case. The others need not be, when the outage is over by now.
            away = self.away
            stored = [ticket for ticket in tickets if ticket.forced or away]
            self.away = away or bool(stored)
        for ticket in tickets:
            if not ticket.forced and not away:
                ticket.stored.set_result(False)
        if not stored:
            return
        try:
            if self._skipped and not any(ticket.forced for ticket in stored):
                raise SpoolFault(str(self._fault))
            last, errors = self._file.add([ticket.commands for ticket in stored])
        except SpoolFault as exc:
            with self._lock:
                self._skip(exc, reached=self._reached)
                self._start()
            for ticket in stored:
                self._turn_away(ticket, exc)
            return
        with self._lock:
            if self._fault is not None:
                self._fault, self._skipped = None, False
                log.warning("the spool %s takes commands again", self.path)
            self._last = max(self._last, last)
            self._added += sum(len(ticket.commands) for ticket in stored)
            self._start()
        for ticket, full in zip(stored, errors, strict=True):
            if full is None:
                ticket.stored.set_result(True)
            else:
                self._turn_away(ticket, full)

    def _skip(self, fault: SpoolFault, *, reached: bool) -> None:
        """Lets commands go past the file until it can be written, and says so once for a cause. The lock is held."""
        if self._fault is None or str(self._fault) != str(fault):
            log.warning("%s; commands go to Redis only, while it can be reached", fault)
        self._fault, self._skipped, self._reached = fault, True, reached

    def _turn_away(self, ticket: _Ticket, fault: SpoolFault) -> None:
        """Answers a ticket whose commands the file did not take."""
        must_stay = ticket.forced or not self._reached
        if not must_stay and (own := [command.id for command in ticket.commands if not command.made]):
            with contextlib.suppress(SpoolFault):  # what can't be read has no order to keep
                must_stay = self._file.holds(own)
        if must_stay:
            ticket.stored.set_exception(fault)
        else:
            ticket.stored.set_result(False)

    # ---- replaying

    def _start(self) -> None:
        """The lock is held."""
        if self._thread is None and not self._closed:
            stop = self._stop = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(stop,), name="shardq-spool-replay", daemon=True)
            self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        mover = self._mover(self._file)
        pause, holding, is_held = FIRST_PAUSE_S, ExitStack(), False
        try:
            while not stop.is_set():
                try:
                    if not is_held:
                        is_held = holding.enter_context(locks.alone(lock_of(self.path))) is not None
                    if self._skipped and is_held:
                        self._file.check(0)
                        self._skipped = False
                    if not is_held:
                        self._look(stop)
                    elif self.away:
                        self._replay(mover, stop)
                    else:
                        mover.run(stop.is_set)
                    self._reached = not is_held or mover.reached
                    over = not self._file.holds_any(self._last)
                    problem = mover.problem
                except (SpoolFault, OSError) as exc:
                    over, problem = False, ""
                    fault = exc if isinstance(exc, SpoolFault) else SpoolFault(f"the spool {self.path} failed: {exc}")
                    with self._lock:
                        self._skip(fault, reached=True)
                except Exception as exc:  # noqa: BLE001  the loop goes on, and the gauge tells
                    over, problem, self._reached = False, str(exc), False
                    mover.close()
                if not mover.is_waiting:  # who sends what this one has sent would send it once more
                    holding.close()
                    is_held = False
                if over and self._ended():
                    return
                self._problem = problem
                hindered = bool(problem) or self._fault is not None
                stop.wait(pause if hindered else LOOK_S)
                pause = min(2 * pause, LONGEST_PAUSE_S) if hindered else FIRST_PAUSE_S
        finally:
            holding.close()
            mover.close()
            with self._lock:
                if self._stop is stop:
                    self._thread = None
                if self._closed:
                    self._file.close()

    def _ended(self) -> bool:
        """Ends the thread, unless another outage has begun: all that was spooled is confirmed and removed."""
        with self._lock:
            if self.away:
                return False
            self._thread = None
        with contextlib.suppress(SpoolFault):
            self._file.tidy()
        return True

    def _replay(self, mover: Mover, stop: threading.Event) -> None:
        """Sends what can be sent."""
        # No command is held back for a server that may still be away. With some shards away all of the file is read.
        well = mover.run(lambda: stop.is_set() or not mover.problem)
        self._reached = mover.reached
        while well and not stop.is_set():
            before = mover.sent, self._added
            with self._writing:
                until, end = mover.sent + self._pages * PAGE_ROWS, time.monotonic() + self._held_s
                well = mover.run(
                    lambda: stop.is_set() or mover.sent >= until or time.monotonic() > end,  # noqa: B023
                    within_s=min(LAST_TRIP_S, self._timeout),
                )
                over = self._over()
                if not well and not over:
                    return
            if over:
                return
            self._let_in(stop)
            self._adapt(mover.sent - before[0], self._added - before[1])

    def _look(self, stop: threading.Event) -> None:
        """Looks at what another process replays, while this one is away.

        Holds commands back while the other makes progress, as if it replayed them itself.
        """
        if not self.away:
            return
        first, left = self._file.first(), self._file.left(self._last)
        moved = first - self._first
        self._first = first
        if left and moved <= 0:
            return
        before = first, self._added
        with self._writing:
            seen = time.monotonic()
            until, end = first + self._pages * PAGE_ROWS, seen + self._held_s
            while left and first < until and time.monotonic() < min(end, seen + QUIET_S) and not stop.wait(0.005):
                if (now := self._file.first()) != first:
                    first, seen = now, time.monotonic()
                left = self._file.left(self._last)
            if not left:
                self._over()
                return
        self._let_in(stop)
        self._adapt(first - before[0], self._added - before[1])

    def _adapt(self, replayed: int, added: int) -> None:
        """Doubles the pages when more than half as many commands were let in as were replayed, and halves them else."""
        self._pages = 2 * self._pages if 2 * added > replayed else max(1, self._pages // 2)

    def _let_in(self, stop: threading.Event) -> None:
        """Waits until those that were held back have stored what they brought. A lock alone is not fair."""
        with self._lock:
            waiting = self._tickets[-1] if self._tickets else None
        while waiting is not None and not waiting.stored.done() and not stop.wait(0.001):
            pass

    def _over(self) -> bool:
        """Ends the outage for this process, unless some of its commands are left. ``_writing`` is held."""
        if self._file.left(self._last):
            return False
        with self._lock:
            self.away = False
            self._problem = ""
            self._fault, self._skipped = None, False
        log.warning(
            "Redis is back after %.1f s, and what was spooled in %s is replayed",
            time.monotonic() - self._since,
            self.path,
        )
        return True

    # ---- for operators

    def stats(self) -> SpoolStats:
        """The gauge of the file. Never raises."""
        fault = str(self._fault) if self._fault is not None else None
        try:
            stats = self._file.stats()
        except SpoolFault as exc:
            return SpoolStats(path=str(self.path), engine=self._engine, fault=str(exc))
        problem = self._problem or None if self._thread is not None and stats.waiting else None
        return msgspec.structs.replace(stats, problem=problem, fault=fault)


def lock_of(path: Path) -> Path:
    """The file whose lock the process that replays holds."""
    return path.with_name(path.name + "-lock")


def _checked_path(path: object) -> Path:
    if not isinstance(path, str | os.PathLike) or not os.fspath(path):
        raise InvalidOption(f"spool={quoted(path)} is not possible; give the path of a file, or None for no spool")
    return Path(os.fsdecode(path)).absolute()
