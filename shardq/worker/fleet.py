"""One worker in several processes: children are forked, watched, and started again when they die.

A child hears of its end through a pipe of its own: it is told to stop, or to hurry, and the pipe closes when the parent
ends. Signals do not say it: those for a whole group of processes, as systemd and terminals send them, reach parent and
children, and must not count twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable

from shardq.errors import InvalidOption
from shardq.worker.logs import tell
from shardq.worker.sign import Sign

POLL_S = 0.1

RESTART_S = 1.0
"""After a child that ended so soon none is started for as long: one that dies at once must not be forked in a loop."""

END_S = 5.0
"""Time for a child to say good-bye, on top of its grace; more than it takes itself."""

STOP = b"s"
HURRY = b"h"

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Fleet:
    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 1000:
            raise InvalidOption(f"processes={size!r} is not possible; give an int from 1 to 1,000")
        self.size = size
        self._children: dict[int, _Child] = {}
        self._wait_until = 0.0

    @property
    def healthy(self) -> bool:
        """True while every place has its child."""
        return len(self._children) == self.size

    def run(self, work: Callable[[], None], stop: Sign, hurry: Sign, *, grace: float) -> None:
        """Keeps ``size`` children at ``work`` until ``stop``, and ends them together: each has ``grace`` seconds for
        its handlers, and ``END_S`` more before it is killed; ``hurry`` ends them without grace.
        """
        self._children = {}
        try:
            while not stop.is_set():
                for pid, status in self._ended():
                    tell(logging.ERROR, "worker process %d has ended with %d; starting another", pid, status)
                self._fill(work, stop, hurry)
                stop.wait(POLL_S)
        finally:
            self._end(hurry, time.monotonic() + grace + END_S)

    def _fill(self, work: Callable[[], None], stop: Sign, hurry: Sign) -> None:
        while len(self._children) < self.size and time.monotonic() >= self._wait_until and not stop.is_set():
            try:
                child = _fork(work, stop, hurry, [other.pipe for other in self._children.values()])
            except OSError as exc:
                tell(logging.ERROR, "a worker process can't be started, trying on: %s", exc)
                self._wait_until = time.monotonic() + RESTART_S
                return
            self._children[child.pid] = child

    def _ended(self) -> list[tuple[int, int]]:
        """Children that have ended, with their exit codes."""
        found = []
        for pid, child in list(self._children.items()):
            try:
                ended, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                # somebody else in this process has waited for it
                ended, status = pid, 0
            if ended:
                del self._children[pid]
                os.close(child.pipe)
                found.append((pid, os.waitstatus_to_exitcode(status)))
                if time.monotonic() - child.since < RESTART_S:
                    self._wait_until = time.monotonic() + RESTART_S
        return found

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
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S / 10)

    def _tell(self, word: bytes) -> None:
        for child in self._children.values():
            # it may have ended meanwhile
            with contextlib.suppress(BrokenPipeError):
                os.write(child.pipe, word)


class _Child:
    """A child, as the parent knows it."""

    def __init__(self, pid: int, pipe: int) -> None:
        self.pid = pid
        self.pipe = pipe
        self.since = time.monotonic()


def _fork(work: Callable[[], None], stop: Sign, hurry: Sign, others: list[int]) -> _Child:
    """``others``: pipes to its siblings, which a child must not keep open."""
    read_end, write_end = os.pipe()
    # none may come to the child before its own handlers are in place: it would be the parent's second
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        pid = os.fork()
        if not pid:
            _child(work, stop, hurry, read_end, [*others, write_end], before)
    except OSError:
        os.close(write_end)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(read_end)
    return _Child(pid, write_end)


def _child(
    work: Callable[[], None], stop: Sign, hurry: Sign, pipe: int, others: list[int], mask: Iterable[int]
) -> None:
    """The whole life of a child. Does not return."""
    status = 1
    try:
        for other in others:
            os.close(other)
        # Ctrl-C reaches every process of a terminal, and the parent hears it
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: stop.set())
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        threading.Thread(target=_listen, args=(pipe, stop, hurry), name="shardq-lifeline", daemon=True).start()
        work()
        status = 0
    except BaseException:  # noqa: BLE001  the child of a fork must end here, whatever happened
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _listen(pipe: int, stop: Sign, hurry: Sign) -> None:
    """In a child: what the parent says. Its end, however that happens, says stop."""
    while word := os.read(pipe, 1):
        if word == HURRY:
            hurry.set()
        stop.set()
    stop.set()
