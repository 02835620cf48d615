"""One worker in several processes: children are forked, watched, and started again when they die."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable

from shardq.errors import InvalidOption
from shardq.worker.sign import Sign

log = logging.getLogger("shardq.worker")

POLL_S = 0.1

RESTART_S = 1.0
"""Between the starts of one place's children: one that dies at once must not be forked in a loop."""

END_S = 5.0
"""On top of the grace: for a child to say good-bye."""


class Fleet:
    def __init__(self, size: int) -> None:
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= 1000:
            raise InvalidOption(f"processes={size!r} is not possible; give an int from 1 to 1,000")
        self.size = size

    def run(self, work: Callable[[], None], stop: Sign, hurry: Sign, *, grace: float) -> None:
        """Keeps ``size`` children at ``work`` until ``stop``; ``hurry`` ends them without grace."""
        children: dict[int, float] = {}
        lifeline = os.pipe()
        try:
            while not stop.is_set():
                self._reap(children)
                while len(children) < self.size and not stop.is_set():
                    children[_fork(work, lifeline)] = time.monotonic()
                stop.wait(POLL_S)
            self._end(children, hurry, time.monotonic() + grace + END_S)
        finally:
            for end in lifeline:
                os.close(end)

    def _reap(self, children: dict[int, float]) -> None:
        for pid, since in list(children.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                del children[pid]
                log.error(
                    "worker process %d has ended with %d; starting another", pid, os.waitstatus_to_exitcode(status)
                )
                if time.monotonic() - since < RESTART_S:
                    time.sleep(RESTART_S)

    def _end(self, children: dict[int, float], hurry: Sign, until: float) -> None:
        _tell(children, signal.SIGTERM)
        hurried = False
        while children:
            for pid in list(children):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del children[pid]
            if hurry.is_set() and not hurried:
                _tell(children, signal.SIGTERM)
                hurried, until = True, time.monotonic() + END_S
            if time.monotonic() > until:
                _tell(children, signal.SIGKILL)
            time.sleep(POLL_S / 10)


def _tell(children: dict[int, float], number: signal.Signals) -> None:
    for pid in children:
        os.kill(pid, number)


def _fork(work: Callable[[], None], lifeline: tuple[int, int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        # Ctrl-C reaches every process of a terminal; the parent passes it on, and twice would mean: without grace
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_the_parent, args=lifeline, name="shardq-lifeline", daemon=True).start()
        work()
        status = 0
    except BaseException:  # noqa: BLE001  the child of a fork must end here, whatever happened
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _end_with_the_parent(read_end: int, write_end: int) -> None:
    """In a child: only the parent keeps the other end open, so it closes when the parent ends, however that happens."""
    os.close(write_end)
    os.read(read_end, 1)
    os.kill(os.getpid(), signal.SIGTERM)
