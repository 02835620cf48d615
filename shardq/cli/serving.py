"""The common part of commands that go on: they end in good order on SIGINT, SIGTERM and SIGHUP, have child processes,
and serve probes and metrics (--http). ``push`` hears signals by it, too: it must not end in the middle of a call.
"""

from __future__ import annotations

import math
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click

from shardq.cli.options import Given, Read, setting
from shardq.cli.output import JSON, TEXT, complain, in_options
from shardq.core.locks import LOOK_S, SignalSafeEvent
from shardq.core.threads import begun
from shardq.errors import BadInput, ShardqError
from shardq.worker.supervisor import Work, ending_signals

if TYPE_CHECKING:
    from shardq import AsyncEngine, Engine
    from shardq.metrics.http import Duty

T = TypeVar("T")

SIGNALLED = 128
"""The exit code of a command that a signal ended is this and the signal's number."""


def apart(work: Callable[[], T]) -> T:
    """Runs ``work`` in a thread of its own and returns its result.

    The main thread is free for signals meanwhile, and the exception of a signal's handler does not interrupt the work.
    """
    outcome = begun(work, "shardq-apart")
    while not outcome.done():
        futures.wait([outcome], LOOK_S)
    return outcome.result()


class _Signals:
    """Hears the signals that end a command. For a ``with`` block in the main thread."""

    def __init__(self) -> None:
        self.heard: tuple[signal.Signals, ...] = ending_signals()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in self.heard}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _hear(self, number: int, _: FrameType | None) -> None:
        raise NotImplementedError


class Ending(_Signals):
    """The wish of the user that a command ends.

    The first signal sets ``asked``. The second one raises KeyboardInterrupt, unless ``finish`` was called before. Later
    ones change nothing, because the command cleans up by then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.signal: int | None = None
        self._pipe: tuple[int, int] | None = None
        """The handler writes to it, and sets no threading.Event: the handler may interrupt ``wait`` while that holds
        the event's lock, and would wait for it for ever.
        """
        self._finishing = False

    def __enter__(self) -> Self:
        self._pipe = os.pipe()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for end in self._pipe or ():
            os.close(end)
        self._pipe = None

    @property
    def asked(self) -> bool:
        return self.signal is not None

    @property
    def code(self) -> int:
        """The exit code of a command that the signal ended."""
        return SIGNALLED + (self.signal or 0)

    def fileno(self) -> int:
        """A descriptor that is readable from the first signal on: for a ``select`` that waits for other things, too."""
        assert self._pipe is not None, "within its with block"
        return self._pipe[0]

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the first signal. Returns True if it came."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        while not self.asked and (left := until - time.monotonic()) > 0:
            select.select([self], [], [], min(left, LOOK_S))
        return self.asked

    def finish(self) -> None:
        """Ignores signals from now on: the command cleans up, and must not stop halfway."""
        self._finishing = True

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self._finishing:
            return
        if self.asked:
            self._finishing = True
            raise KeyboardInterrupt
        self.signal = number
        if self._pipe is not None:
            os.write(self._pipe[1], b"\0")


class Shutdown(_Signals):
    """The end of a command that finishes what runs, or has processes. The first signal sets ``stop``, a second one
    ``hurry``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stop: SignalSafeEvent = SignalSafeEvent()
        self.hurry: SignalSafeEvent = SignalSafeEvent()
        self.code: int = 0
        """The exit code: 0 after the first signal, that of the second one after it."""

    def _hear(self, number: int, _: FrameType | None) -> None:
        if not self.stop.set():
            self.hurry.set()
            self.code = SIGNALLED + number


def _place(text: str) -> str:
    """HOST:PORT, checked, and kept as text: settings show it."""
    from shardq.metrics.http import Address  # here: most commands serve nothing

    Address.parsed(text)
    return text


http: Final = setting(
    "--http",
    type=Read("host:port", _place),
    help="Serve /livez, /readyz and /metrics there; port 0 takes a free one, and says which.",
)


log_option: Final = setting(
    "--log",
    type=click.Choice([TEXT, JSON]),
    default=TEXT,
    help="Print each line of the log as text, or as a JSON object with its fields. Default: text.",
)


@contextmanager
def served(engine: Engine | AsyncEngine, place: str | None, duty: Duty) -> Iterator[None]:
    """Serves the probes and metrics of this process, if that was asked for."""
    if place is None:
        yield
        return
    from shardq.metrics.http import Address, ProbeServer  # as above

    with ProbeServer(engine, Address.parsed(place), duty=duty) as server:
        complain(f"probes and metrics at {server.url}")
        yield


def check_one_process(place: str | None, processes: int) -> None:
    if place is not None and processes > 1:
        raise BadInput("--http serves one process: leave out --processes, or start several commands with a port each")


MAX_PROCESSES = 1000
FAILED = 1


def child(given: Given, work: Callable[[], int | None]) -> Work:
    """Returns the life of a child that does this work; what goes wrong is said in a line."""

    def life() -> int | None:
        try:
            return work()
        except ShardqError as exc:
            if given.verbose:
                complain(traceback.format_exc().rstrip())
            complain(f"error: {in_options(str(exc))}")
            return FAILED

    return life
