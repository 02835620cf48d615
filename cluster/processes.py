"""Processes that others have started, looked at and killed by id. Called by ``local``. With the standard library alone:
``python -m cluster`` is for whoever has installed shardq.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_POLL_S = 0.02


@dataclass(frozen=True)
class Living:
    """A process that runs."""

    pid: int
    name: str
    """The name of its program, the first 15 characters of it."""
    started: str
    """When, in no particular form: equal for the same process only."""


def living(pid: int) -> Living | None:
    """None: there is no such process, or only what its parent has not yet asked for."""
    seen = _from_proc(pid) if (_PROC / "self/stat").exists() else _from_ps(pid)
    return None if seen is None or seen[0] == "Z" else Living(pid, seen[1], seen[2])


def kill(pids: Iterable[int], *, timeout: float) -> None:
    """SIGKILL, and waits until they have ended."""
    deadline = time.monotonic() + timeout
    pids = list(pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    while any(living(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _from_proc(pid: int) -> tuple[str, str, str] | None:
    """State, name and start."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # 4711 (name, which may hold anything) S 1 …; the start, in ticks since the machine's, is the 20th after the name
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return fields[0], head.partition("(")[2], f"{fields[19]} after {boot}"


def _from_ps(pid: int) -> tuple[str, str, str] | None:
    """The same where there is no /proc, as on macOS."""
    asked = ["ps", "-o", "state=,lstart=,comm=", "-p", str(pid)]
    words = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
    return (words[0][0], Path(" ".join(words[6:])).name, " ".join(words[1:6])) if len(words) > 6 else None
