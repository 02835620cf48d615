"""The supervisor of several processes: forks children, watches them, and restarts those that die. A worker with
``processes=`` has one, and so have the commands with ``--processes`` and ``--reload``.

A child is told to stop, or to hurry, through a pipe of its own; the pipe closes when the parent ends. Signals do not
tell it: those for a whole process group, as systemd and terminals send them, reach parent and children, and must not
count twice.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection
from types import FrameType
from typing import NamedTuple, NoReturn

from shardq.core import forks
from shardq.core.locks import SignalSafeEvent
from shardq.core.model.printable import quoted
from shardq.delivery.logs import tell
from shardq.errors import InvalidOption

POLL_S = 0.1

YOUNG_S = 5.0
"""A child that ends sooner has failed at its start: the next one will most likely fail, too."""

RESTART_S = 1.0
"""The pause after such a failure, for all places together. It doubles each time, until a child grows older."""

LONGEST_RESTART_S = 30.0

END_S = 5.0
"""The time that a child has to end, beyond its grace; more than it needs."""

Work = Callable[[], int | None]
"""The life of a child; it returns the exit code, or None for 0."""

STOP = b"s"
HURRY = b"h"


def ending_signals() -> tuple[signal.Signals, ...]:
    """The signals that end a worker. SIGHUP, which a closed terminal sends, is not among them when it is ignored, as
    under nohup, or when the program has a handler for it.
    """
    always = (signal.SIGTERM, signal.SIGINT)
    return (*always, signal.SIGHUP) if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL else always


IN_ORDER = "in order"
"""How a child ends that was told to, by SIGTERM or by its own ``worker.stop()``."""


class ProcessSupervisor:
    """Supervises children, in any thread of any program: signals reach a child's own handlers whatever the program does
    with its own, and no other child of the program is waited for.
    """

    def __init__(self, size: int, *, what: str = "worker", again: int | None = None) -> None:
        """``what``: the children, in logs. ``again``: the exit code of a child that wants to be started anew, which is
        no failure.
        """
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 1000:
            raise InvalidOption(f"processes={quoted(size)} is not possible; give an int from 1 to 1,000")
        self.size = size
        self._what = what
        self._again = again
        self._set_up()
        forks.watch(self, ProcessSupervisor._forked)

    def _set_up(self) -> None:
        self._children: dict[int, _Child] = {}
        self._pipes: set[int] = set()
        """The parent's ends of the pipes."""
        self._round = 0
        """Counts the pauses: many children that die between two of them are one failure."""
        self._failures = 0
        """Failures in a row."""
        self._next_at = 0.0

    def _forked(self) -> None:
        """Closes the pipes in every child, also in those that the program forks for itself: as long as one is open, the
        parent seems to live.
        """
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                os.close(pipe)
        self._set_up()

    @property
    def healthy(self) -> bool:
        """True while every place has its child."""
        return len(self._children) == self.size

    def run(
        self,
        work: Work,
        stop: SignalSafeEvent,
        hurry: SignalSafeEvent,
        *,
        heard: Collection[signal.Signals],
        grace: float,
    ) -> None:
        """Keeps ``size`` children at ``work`` until ``stop``, and ends them together: each has ``grace`` seconds for
        its handlers, and ``END_S`` more before it is killed; ``hurry`` ends them without grace. ``heard``: the signals
        that stop the parent.
        """
        self._set_up()

        def live(pipe: int, mask: Collection[int]) -> NoReturn:
            _child(work, stop, hurry, pipe, heard, mask)

        try:
            while not stop.is_set():
                for pid, how in self._ended():
                    level = logging.WARNING if how == IN_ORDER else logging.ERROR
                    what = "%s process %d has ended %s; %s"
                    tell(level, what, self._what, pid, how, self._next(), extra={"pid": pid})
                while len(self._children) < self.size and time.monotonic() >= self._next_at and not stop.is_set():
                    try:
                        self._fork(live, heard)
                    except OSError as exc:
                        self._failed(self._round)
                        tell(logging.ERROR, "a %s process can't be started; %s: %s", self._what, self._next(), exc)
                stop.wait(POLL_S)
        finally:
            self._end(hurry, time.monotonic() + grace + END_S)

    def _fork(self, live: Callable[[int, Collection[int]], NoReturn], heard: Collection[signal.Signals]) -> None:
        read_end, write_end = os.pipe()
        self._pipes.add(write_end)
        # Output that waits to be written would be written by each child, too.
        _flush()
        # No signal may reach the child before its own handlers are in place: it would be the parent's second.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        try:
            pid = os.fork()
            if not pid:
                live(read_end, before)
        except OSError:
            self._close(write_end)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(read_end)
        self._children[pid] = _Child(write_end, self._round, time.monotonic())

    def _close(self, pipe: int) -> None:
        self._pipes.discard(pipe)
        os.close(pipe)

    def _ended(self) -> list[tuple[int, str]]:
        """The children that have ended, and how."""
        found = []
        for pid, child in list(self._children.items()):
            code: int | None = None
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status)
                how = IN_ORDER if not code else f"with {code}" if code > 0 else f"by {_name(-code)}"
            except ChildProcessError:
                ended, how = pid, "(how is not known: this program ignores SIGCHLD, or waits for every child itself)"
            if ended:
                del self._children[pid]
                self._close(child.pipe)
                if code is not None and code == self._again:
                    self._failures = 0
                    continue
                found.append((pid, how))
                if time.monotonic() - child.since < YOUNG_S:
                    self._failed(child.round)
                else:
                    self._failures = 0
        return found

    def _failed(self, which: int) -> None:
        if which == self._round:
            self._round += 1
            self._failures += 1
            pause_s = min(RESTART_S * 2.0 ** min(self._failures - 1, 10), LONGEST_RESTART_S)
            self._next_at = time.monotonic() + pause_s

    def _next(self) -> str:
        left_s = self._next_at - time.monotonic()
        return f"the next start is in {math.ceil(left_s)} s" if left_s > 0 else "starting another"

    def _end(self, hurry: SignalSafeEvent, until: float) -> None:
        self._tell(STOP)
        hurried = False
        while self._children:
            self._ended()
            if hurry.is_set() and not hurried:
                self._tell(HURRY)
                hurried, until = True, min(until, time.monotonic() + END_S)
            if time.monotonic() > until:
                for pid in self._children:
                    # Where SIGCHLD is ignored, nobody keeps the dead until we ask.
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S / 10)

    def _tell(self, word: bytes) -> None:
        for child in self._children.values():
            # It may have ended meanwhile.
            with contextlib.suppress(BrokenPipeError):
                os.write(child.pipe, word)


class _Child(NamedTuple):
    """A child, as the parent knows it."""

    pipe: int
    round: int
    since: float


def _child(
    work: Work,
    stop: SignalSafeEvent,
    hurry: SignalSafeEvent,
    pipe: int,
    heard: Collection[signal.Signals],
    mask: Collection[int],
) -> NoReturn:
    """Runs the whole life of a child. Does not return."""
    status = 1
    try:
        # The parent's event loop would take our signals for its own.
        signal.set_wakeup_fd(-1)
        for number in heard:
            # Ctrl-C reaches every process of a terminal, and the parent hears it. A handler, because programs that we
            # start would inherit an ignored signal.
            signal.signal(number, _nothing)
        signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
        # The program may block them in all its threads, and wait for them.
        signal.pthread_sigmask(signal.SIG_SETMASK, set(mask).difference(heard))
        threading.Thread(target=_listen, args=(pipe, stop, hurry), name="shardq-lifeline", daemon=True).start()
        status = work() or 0
    except BaseException:  # noqa: BLE001  the child of a fork must end here, whatever happened
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


def _nothing(number: int, frame: FrameType | None) -> None:
    """Handles a signal that another process answers."""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # None, closed, or a pipe that nobody reads.
        with contextlib.suppress(Exception):
            stream.flush()


def _listen(pipe: int, stop: SignalSafeEvent, hurry: SignalSafeEvent) -> None:
    """Reads, in a child, what the parent says. Its end says stop, however it happens."""
    try:
        while word := os.read(pipe, 1):
            if word == HURRY:
                hurry.set()
            stop.set()
    finally:
        stop.set()
