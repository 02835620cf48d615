"""A program of a peer runs here: it takes orders, notes what it handled, and is ended in whatever state it is."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.peers.homes import ROOT, Home
from cluster import warden

START_TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0
LOOK_S = 0.05


class Failed(Exception):
    """A peer ended, or did not answer in time. The message ends with the last line it wrote."""


class Child:
    """One role of a program, in a process group of its own, so that all processes it starts end with it."""

    def __init__(self, home: Home, role: str, *, url: str, folder: Path) -> None:
        self.role = role
        self._log = folder / f"{role}.log"
        self._answers = bytearray()
        environment = {
            **os.environ,
            "SHARDQ_PEERS_URL": url,
            "SHARDQ_PEERS_NOTES": str(folder),
            "SHARDQ_PEERS_HOME": str(home.folder),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*home.command, role],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if role == "push" else log,
                stderr=log,
                cwd=folder,
                env=environment,
                start_new_session=True,
            )
        self._key = warden.new_key()
        # a negative id is that of a group
        warden.note(self._key, pid=-self._process.pid, folder=None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def check(self) -> None:
        """Raises ``Failed`` if it has ended."""
        if (code := self._process.poll()) is not None:
            raise Failed(f"{self._name} ended with code {code}: {self._last_line()}")

    def answer(self, *, timeout: float = START_TIMEOUT_S) -> dict[str, Any]:
        """Returns the next answer of a pusher. The first, after its start, tells that it takes orders."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Failed(f"{self._name} did not answer within {timeout:.0f} s: {self._last_line()}")
            if select.select([self._process.stdout], [], [], min(left, 1.0))[0]:
                read = os.read(self._process.stdout.fileno(), 65_536)
                self._answers += read
                if not read:
                    self._process.wait(END_TIMEOUT_S)
                    self.check()
        line, _, rest = bytes(self._answers).partition(b"\n")
        self._answers = bytearray(rest)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def push(self, dues: Sequence[float], *, seconds: float = 1e9, timeout: float) -> dict[str, Any]:
        """Orders a pusher to push, and returns the number of tasks and the time."""
        assert self._process.stdin is not None
        order = json.dumps({"dues": list(dues), "seconds": seconds})
        try:
            self._process.stdin.write(order.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._process.wait(END_TIMEOUT_S)
            self.check()
        return self.answer(timeout=timeout)

    def end(self) -> None:
        """Ends it with SIGTERM, or by force if that does not help. All it started ends with it. Idempotent."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        warden.note(self._key, pid=None, folder=None)

    @property
    def _name(self) -> str:
        return "its worker" if self.role == "work" else "its pusher"

    def _last_line(self) -> str:
        """Returns the last line of its log that names an error, else its last: some write more after an error."""
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if "Error:" in line]
        return (errors or lines or ["(it wrote nothing)"])[-1]


class Notes:
    """The notes of workers in one folder: how late each task was, in seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def fresh(self) -> list[float]:
        """Returns the notes that were not there at the last call."""
        found: list[float] = []
        for path in sorted(self._folder.glob("*.late")):
            offset = self._read.get(path, 0)
            size = (path.stat().st_size - offset) // 8 * 8
            if size:
                with path.open("rb") as file:
                    file.seek(offset)
                    values = array("d", file.read(size))
                self._read[path] = offset + 8 * len(values)
                found += values
        return found

    def wait(self, count: int, *, until: float, worker: Child) -> list[float]:
        """Returns so many notes, or those that have come by ``until``, in the seconds of ``time.time()``."""
        found: list[float] = []
        while len(found) < count and time.time() < until:
            time.sleep(LOOK_S)
            worker.check()
            found += self.fresh()
        return found
