"""The demo's own server. Called by ``command``.

The module is a script, too: the watchdog, which ``own_server`` starts in a process of its own. It outlives a demo that
was killed, ends its server and removes its folder. It loads the standard library alone, to cost next to nothing beside
what the demo shows.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

START_S = 10.0
"""Time for a server that was just being started to listen."""

END_S = 10.0
TRY_S = 0.05


@contextmanager
def own_server() -> Iterator[str]:
    """The URL of an embedded server with its data in a temporary directory. Both are gone at the end."""
    from shardq.features import embedded  # late: not for the watchdog

    folder = Path(tempfile.mkdtemp(prefix="shardq-demo-"))
    try:
        with _watchdog(folder), embedded.enter(folder) as server:
            yield server.url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _watchdog(folder: Path) -> Iterator[None]:
    dog = subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C is not for it
    )
    try:
        yield
    finally:
        dog.kill()
        dog.communicate()


def watch(folder: Path) -> None:
    """Waits until the demo has ended, and clears up."""
    sys.stdin.buffer.read()  # until the demo's end of the pipe is closed, however it has ended
    deadline = time.monotonic() + START_S
    while folder.exists() and not _shut_down(folder / "socket") and time.monotonic() < deadline:
        time.sleep(TRY_S)
    shutil.rmtree(folder, ignore_errors=True)


def _shut_down(written: Path) -> bool:
    """False if no server listens where the file says."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(END_S)
        line.connect(written.read_bytes())
        line.sendall(b"SHUTDOWN NOSAVE\r\n")
        line.recv(1)  # nothing, when the server closes it at its end
        return True
    return False


if __name__ == "__main__":
    watch(Path(sys.argv[1]))
