"""Programs for a test, run as their users run them: in processes of their own, which print what they say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping

import psutil

ENDS_S = 60.0
"""For a program on a busy machine."""


class Program:
    """A Python program that runs. Its lines are read as they come; it is killed at the end of the test if it still
    runs.

    ``logs=True``: what it writes to stderr is among its lines.
    """

    def __init__(self, *words: str | os.PathLike[str], variables: Mapping[str, str], logs: bool = False) -> None:
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("SHARDQ_")}
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, *words],
            env={**inherited, "PYTHONUNBUFFERED": "1", **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if logs else subprocess.PIPE,
            text=True,
        )

    def next_line(self) -> str:
        """Waits for it."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended after {self.lines}: {self._rest()[1]}"
        self.lines.append(line.rstrip("\n"))
        return self.lines[-1]

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
        lines = self.lines + rest.splitlines()
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

    def _rest(self) -> tuple[str, str]:
        rest, errors = self._process.communicate(timeout=ENDS_S)
        return rest, errors or ""
