"""The event loop of all sinks for asyncio in a process, in a thread of its own: never a loop of the user's.

The thread runs from the first task of such a sink until the routes of the process end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

from shardq.core import forks
from shardq.core.threads import launch

log: logging.Logger = logging.getLogger("shardq.sinks")


class OwnLoop:
    """One loop for all who have entered. Thread-safe."""

    def __init__(self) -> None:
        self._reset()
        forks.watch(self, OwnLoop._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._users = 0

    def enter(self) -> asyncio.AbstractEventLoop:
        """Returns the loop, which runs until ``leave``. Raises RuntimeError if the system has no thread for it."""
        with self._lock:
            if self._loop is None:
                # the program's policy may give a loop of another kind
                loop = asyncio.SelectorEventLoop()
                loop.set_exception_handler(_note)
                try:
                    launch(threading.Thread(target=_run, args=(loop,), name="shardq-sinks-http", daemon=True))
                except RuntimeError:
                    loop.close()
                    raise
                self._loop = loop
            self._users += 1
            return self._loop

    def leave(self, loop: asyncio.AbstractEventLoop) -> None:
        """To be called once for each ``enter``, when nothing of its caller is left in the loop."""
        with self._lock:
            if loop is not self._loop:  # that of the parent of a fork
                return
            self._users -= 1
            if self._users:
                return
            self._loop = None
        loop.call_soon_threadsafe(loop.stop)


LOOP: OwnLoop = OwnLoop()
"""That of this process."""


def _run(loop: asyncio.AbstractEventLoop) -> None:
    while True:
        try:
            loop.run_forever()
            break
        except BaseException:  # one sink must not end the others
            log.exception("a callback in the loop of sinks has failed")
    loop.close()


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Notes what asyncio says of a connection: results tell the errors of requests."""
    log.debug("sinks: %s: %r", context.get("message"), context.get("exception"))
