"""Threads of the engine, open sockets and settings of logging that a test leaves behind in this process."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import stat
import threading

import psutil

from tests.support.waiting import wait_until

GRACE_S = 10.0  # closing is prompt, but a thread may still be returning from its last call, on a machine that is busy

Socket = tuple[int, int]


def engine_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("shardq")}


def open_sockets() -> set[Socket]:
    """File descriptor and inode of every socket of this process."""
    own = set()
    with os.scandir("/proc/self/fd") as descriptors:
        for fd in [int(each.name) for each in descriptors]:
            with contextlib.suppress(OSError):
                found = os.fstat(fd)
                if stat.S_ISSOCK(found.st_mode):
                    own.add((fd, found.st_ino))
    return own


def ends_of(sockets: set[Socket]) -> list[str]:
    """The two ends of each, read from a list of all sockets of the machine: that takes longer than most tests."""
    ends = {each.fd: f"{each.laddr} to {each.raddr}" for each in psutil.Process().net_connections(kind="all")}
    return [ends.get(fd, f"{fd}") for fd, _ in sorted(sockets)]


def logging_settings() -> dict[str, str]:
    """The settings of the loggers of the engine that have any."""
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    return {
        logger.name: f"level {logger.level}, propagate {logger.propagate}, handlers {logger.handlers}"
        for logger in loggers
        if logger.name.startswith("shardq") and (logger.level, logger.propagate, logger.handlers) != (0, True, [])
    }


class Leaks:
    """Remembers the present threads, sockets and settings; ``check`` fails if there are more, or others."""

    def __init__(self) -> None:
        self._threads = engine_threads()
        self._sockets = open_sockets()
        self._logging = logging_settings()

    def check(self, *, grace: float = GRACE_S) -> None:
        left = self._left()

        def all_closed() -> bool:
            gc.collect()  # what is only held by a cycle is no leak; a thread may leave one behind at its end
            left[:] = self._left()
            return not left

        if not left:
            return
        try:
            wait_until(all_closed, "all is closed", timeout=grace)
        except AssertionError:
            raise AssertionError(f"the test left behind: {', '.join(left)}") from None

    def _left(self) -> list[str]:
        threads = [f"thread {thread.name}" for thread in engine_threads() - self._threads]
        opened = open_sockets() - self._sockets
        sockets = [f"socket {ends}" for ends in ends_of(opened)] if opened else []
        settings = logging_settings()
        changed = [name for name in settings | self._logging if settings.get(name) != self._logging.get(name)]
        return threads + sockets + [f"settings of the logger {name}" for name in changed]
