"""Other processes for a test: started, told to stop, killed, and never left behind.

A worker is a module run with ``python -m``. It says one line when it is under way, and ends when its stdin does: so
it also ends with the test that was killed.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

import psutil

from tests.support.waiting import wait_until

STOP_TIMEOUT_S = 40.0

SOON_S = 40.0
"""The time for other processes on a busy machine."""


class Worker:
    """One process. On leaving the ``with`` block it is told to stop, and killed if it does not."""

    def __init__(self, module: str, *words: object) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the test, which then stops its workers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except subprocess.TimeoutExpired:
            self.kill()
            if kind is None:
                raise

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """Waits for its next line; empty when it has ended."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def tell(self) -> None:
        """Sends it an empty line."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Tells it to stop, and does not wait."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it may have ended already
            self._process.stdin.close()

    def kill(self) -> None:
        """SIGKILL, as a crash is."""
        self._process.kill()
        self._finish()

    def stop(self) -> int:
        """Tells it to stop, waits, and returns its exit code."""
        self.end()
        return self._finish()

    def _finish(self) -> int:
        code = self._process.wait(STOP_TIMEOUT_S)
        self.end()
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


Start = Callable[..., Worker]


def gone(process: psutil.Process) -> bool:
    """True if the process has ended, or is a zombie."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def ends(worker: Worker) -> None:
    """Waits until the worker ends by itself, with exit code 0."""
    wait_until(lambda: not worker.running, "the worker has ended", timeout=SOON_S)
    assert worker.stop() == 0


def wait_for_the_end() -> None:
    """In the worker: waits until the test says stop, or has ended."""
    sys.stdin.read()


def say(line: str) -> None:
    """In the worker: sends one line to the test."""
    print(line, flush=True)
