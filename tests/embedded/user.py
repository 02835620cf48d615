"""A process that uses an embedded server: tests tell it what to do, and kill it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import sys
from pathlib import Path
from shardq.features.embedded import enter

print("ready", flush=True)
sys.stdin.readline()
use = enter(Path(sys.argv[1]), timeout=30)
print("started" if use.started else "found", use.socket, flush=True)
if sys.stdin.readline().strip() == "leave":
    use.leave()
"""

_COMER_AND_GOER = """
import sys
from pathlib import Path
import redis
from shardq.features.embedded import enter

for _ in range(int(sys.argv[2])):
    with enter(Path(sys.argv[1])) as use, redis.Redis.from_url(use.url) as connection:
        connection.incr("visits")
"""


class User:
    """Another process. It enters when told to, and leaves when told to."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def wait_ready(self) -> None:
        """Until it can be told to enter."""
        assert self._hear() == "ready"

    def go_in(self) -> None:
        """Tell it to enter, without waiting for it. One that is not ready yet does it then."""
        self._say("enter")

    def is_in(self) -> tuple[bool, Path]:
        """Wait until it is in: whether it started the server, and the socket."""
        if (said := self._hear()) == "ready":
            said = self._hear()
        word, _, socket = said.partition(" ")
        assert word in ("started", "found"), f"the other process said {word!r}"
        return word == "started", Path(socket)

    def leave(self) -> None:
        """Wait until it has left and ended."""
        self._say("leave")
        assert self._process.wait(timeout=30) == 0

    def forget_to_leave(self) -> None:
        """Wait until its program has come to its end."""
        self._say("end")
        assert self._process.wait(timeout=30) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(timeout=10)

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextmanager
def user(folder: Path) -> Iterator[User]:
    """Start one; it does not enter yet. Killed at the end if it is still there."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield User(process)
        finally:
            process.kill()


@contextmanager
def comer_and_goer(folder: Path, *, times: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that enters, adds one to ``visits``, and leaves, many times."""
    with subprocess.Popen([sys.executable, "-c", _COMER_AND_GOER, str(folder), str(times)]) as process:
        try:
            yield process
        finally:
            process.kill()
