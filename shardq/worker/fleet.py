"""One worker in several processes: children are forked, watched, and started again when they die.

A child hears of its end through a pipe of its own: it is told to stop, or to hurry, and the pipe closes when the parent
ends. Signals do not say it: those for a whole group of processes, as systemd and terminals send them, reach parent and
children, and must not count twice.
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

from shardq import forks
from shardq.errors import InvalidOption
from shardq.worker.logs import tell
from shardq.worker.sign import Sign

POLL_S = 0.1

YOUNG_S = 5.0
"""A child that ends sooner has ended at its start: the next one will most likely do the same."""

RESTART_S = 1.0
"""The pause after that, for all places together; it doubles each time, and a child that grew older ends that."""

LONGEST_RESTART_S = 30.0

END_S = 5.0
"""Time for a child to say good-bye, on top of its grace; more than it takes itself."""

STOP = b"s"
HURRY = b"h"


class Fleet:
    """Works in any thread of any program: signals reach a child's own handlers whatever the program does with its own,
    and no child but ours is waited for.
    """

    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 1000:
            raise InvalidOption(f"processes={size!r} is not possible; give an int from 1 to 1,000")
        self.size = size
        self._set_up()
        forks.watch(self, Fleet._forked)

    def _set_up(self) -> None:
        self._children: dict[int, _Child] = {}
        self._pipes: set[int] = set()
        """Our ends."""
        self._round = 0
        """The children between two pauses: many that die at their start are one failure."""
        self._failures = 0
        """In a row."""
        self._next_at = 0.0

    def _forked(self) -> None:
        """In every child, those that the program forks for itself too: while one keeps a pipe open, it seems as if the
        parent lived.
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
        self, work: Callable[[], None], stop: Sign, hurry: Sign, *, heard: Collection[signal.Signals], grace: float
    ) -> None:
        """Keeps ``size`` children at ``work`` until ``stop``, and ends them together: each has ``grace`` seconds for
        its handlers, and ``END_S`` more before it is killed; ``hurry`` ends them without grace. ``heard``: the signals
        that the parent is stopped by.
        """
        self._set_up()
        try:
            while not stop.is_set():
                for ending in self._ended():
                    tell(logging.ERROR, "worker process %d has ended %s; %s", *ending, self._next())
                self._fill(work, stop, hurry, heard)
                stop.wait(POLL_S)
        finally:
            self._end(hurry, time.monotonic() + grace + END_S)

    def _fill(self, work: Callable[[], None], stop: Sign, hurry: Sign, heard: Collection[signal.Signals]) -> None:
        while len(self._children) < self.size and time.monotonic() >= self._next_at and not stop.is_set():
            try:
                child = self._fork(work, stop, hurry, heard)
            except OSError as exc:
                self._failed(self._round)
                tell(logging.ERROR, "a worker process can't be started; %s: %s", self._next(), exc)
                return
            self._children[child.pid] = child

    def _fork(self, work: Callable[[], None], stop: Sign, hurry: Sign, heard: Collection[signal.Signals]) -> _Child:
        read_end, write_end = os.pipe()
        self._pipes.add(write_end)
        # what waits to be written would be written by each child, too
        _flush()
        # none may come to the child before its own handlers are in place: it would be the parent's second
        before = signal.pthread_sigmask(signal.SIG_BLOCK, heard)
        try:
            pid = os.fork()
            if not pid:
                _child(work, stop, hurry, read_end, heard, before)
        except OSError:
            self._close(write_end)
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(read_end)
        return _Child(pid, write_end, self._round)

    def _close(self, pipe: int) -> None:
        self._pipes.discard(pipe)
        os.close(pipe)

    def _ended(self) -> list[tuple[int, str]]:
        """Children that have ended, and how."""
        found = []
        for pid, child in list(self._children.items()):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
                how = f"with {os.waitstatus_to_exitcode(status)}"
            except ChildProcessError:
                ended, how = pid, "(how is not known: this program ignores SIGCHLD, or waits for every child itself)"
            if ended:
                del self._children[pid]
                self._close(child.pipe)
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

    def _end(self, hurry: Sign, until: float) -> None:
        self._tell(STOP)
        hurried = False
        while self._children:
            self._ended()
            if hurry.is_set() and not hurried:
                self._tell(HURRY)
                hurried, until = True, min(until, time.monotonic() + END_S)
            if time.monotonic() > until:
                for pid in self._children:
                    # where SIGCHLD is ignored nobody keeps the dead until we ask
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S / 10)

    def _tell(self, word: bytes) -> None:
        for child in self._children.values():
            # it may have ended meanwhile
            with contextlib.suppress(BrokenPipeError):
                os.write(child.pipe, word)


class _Child:
    """A child, as the parent knows it."""

    def __init__(self, pid: int, pipe: int, which: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.round = which
        self.since = time.monotonic()


def _child(
    work: Callable[[], None],
    stop: Sign,
    hurry: Sign,
    pipe: int,
    heard: Collection[signal.Signals],
    mask: Collection[int],
) -> None:
    """The whole life of a child. Does not return."""
    status = 1
    try:
        # the parent's event loop would take our signals for its own
        signal.set_wakeup_fd(-1)
        for number in heard:
            # Ctrl-C reaches every process of a terminal, and the parent hears it; a handler, as what is ignored would
            # be ignored by the programs that we start, too
            signal.signal(number, _nothing)
        signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
        # the program may block them in all its threads, and wait for them
        signal.pthread_sigmask(signal.SIG_SETMASK, set(mask).difference(heard))
        threading.Thread(target=_listen, args=(pipe, stop, hurry), name="shardq-lifeline", daemon=True).start()
        work()
        status = 0
    except BaseException:  # noqa: BLE001  the child of a fork must end here, whatever happened
        traceback.print_exc()
    finally:
        _flush()
        os._exit(status)


def _nothing(number: int, frame: FrameType | None) -> None:
    """A signal that another process answers."""


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # None, closed, or a pipe that nobody reads
        with contextlib.suppress(Exception):
            stream.flush()


def _listen(pipe: int, stop: Sign, hurry: Sign) -> None:
    """In a child: what the parent says. Its end, however that happens, says stop."""
    try:
        while word := os.read(pipe, 1):
            if word == HURRY:
                hurry.set()
            stop.set()
    finally:
        stop.set()
