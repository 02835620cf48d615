"""Ends the server of a demo that was killed, and removes its folder. Run by ``command`` as a script, in a process
of its own that outlives the demo; with the standard library alone, so that it costs nothing beside what is shown.
"""

from __future__ import annotations

import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

START_S = 10.0
"""Time for a server that was just being started to listen."""

END_S = 10.0
TRY_S = 0.05


def main(folder: Path) -> None:
    sys.stdin.buffer.read()  # its other end is the demo's: closed when that has ended, however
    deadline = time.monotonic() + START_S
    while folder.exists() and not _shut_down(folder / "socket") and time.monotonic() < deadline:
        time.sleep(TRY_S)
    shutil.rmtree(folder, ignore_errors=True)


def _shut_down(written: Path) -> bool:
    """False: nobody listens where the file says."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.settimeout(END_S)
        line.connect(written.read_bytes())
        line.sendall(b"SHUTDOWN NOSAVE\r\n")
        line.recv(1)  # nothing, when the server closes it at its end
        return True
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]))
