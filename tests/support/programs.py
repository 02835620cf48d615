"""Programs for a test, run as their users run them: in processes of their own, which print what they say.

Their output is a terminal: lines come as they are printed, each whole. With PYTHONUNBUFFERED, Python would write a line
and its end apart, so that the lines of two threads run together.
"""

from __future__ import annotations

import os
import pty
import queue
import re
import signal
import subprocess
import sys
import threading
import tty
from collections.abc import Mapping

import psutil

ENDS_S = 60.0
"""For a program on a busy machine."""


def plain_environment() -> dict[str, str]:
    """The environment of a user: without what is set for shardq, or for the Python of the tests."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("SHARDQ_", "PYTHON"))}


class Program:
    """A Python program that runs. Its lines are read as they come; it is killed at the end of the test if it still
    runs.

    ``logs=True``: what it writes to stderr is among its lines.
    """

    def __init__(self, *words: str | os.PathLike[str], variables: Mapping[str, str], logs: bool = False) -> None:
        self.lines: list[str] = []
        self._coming: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        ours, theirs = pty.openpty()
        tty.setraw(theirs)  # a line ends as it was printed
        self._process = subprocess.Popen(
            [sys.executable, *words],
            env={**plain_environment(), **variables},
            stdout=theirs,
            stderr=subprocess.STDOUT if logs else subprocess.PIPE,
            text=True,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, args=[ours], daemon=True)
        self._reader.start()

    def _read(self, terminal: int) -> None:
        with os.fdopen(terminal, encoding="utf-8") as lines:
            try:
                for line in lines:
                    self._coming.put(line.rstrip("\n"))
            except OSError:  # how Linux says that the other end is closed
                pass
        self._coming.put(None)

    def next_line(self) -> str:
        """Waits for it."""
        line = self._coming.get()
        if line is None:
            self._coming.put(None)
            raise AssertionError(f"it ended after {self.lines}: {self._rest()[1]}")
        self.lines.append(line)
        return line

    def until(self, *wanted: str) -> None:
        """Reads its lines until each of these has come, in any order."""
        while not set(wanted) <= set(self.lines):
            self.next_line()

    def matching(self, pattern: str) -> re.Match[str]:
        """Reads its lines until one has the pattern in it."""
        while (found := re.search(pattern, self.next_line())) is None:
            pass
        return found

    @property
    def children(self) -> list[psutil.Process]:
        """Its children, and theirs."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """SIGTERM, as a service is ended."""
        self._process.terminate()

    def ends_well(self, *codes: int) -> list[str]:
        """All of its lines, once it has ended by itself, with 0 or another of these codes. It may log, but shows no
        traceback."""
        rest, errors = self._rest()
        lines = self.lines + rest
        assert self._process.returncode in (0, *codes), (lines, errors)
        assert not any("Traceback" in text for text in (*lines, errors)), (lines, errors)
        return lines

    def end(self) -> None:
        """For one that may run on."""
        if self._process.poll() is None:
            children = self.children
            self._process.kill()
            for child in children:
                child.kill()
            self._rest()

    def _rest(self) -> tuple[list[str], str]:
        _, errors = self._process.communicate(timeout=ENDS_S)
        self._reader.join(ENDS_S)
        assert not self._reader.is_alive(), "what it started still runs, and may print"
        rest = list(iter(self._coming.get, None))
        self._coming.put(None)
        return rest, errors or ""
