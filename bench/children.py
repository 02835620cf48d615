"""Processes that take part in a measurement are started, told to begin and to end, and killed if they do not end.

A child prints ``ready``, begins when it reads a line, ends when its stdin ends, and prints its result as one line of
JSON. ``taking_part`` is the child's side of this.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from shardq.engine.servers import SERVERS

_END_S = 60.0


class Child:
    """The process of ``python -m MODULE ARGUMENTS…``. It is killed if it still runs at the end of the block."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._module = module
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the bench, which then ends its children
        )

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        # this closes its pipes too
        self._process.communicate()

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self._module} ended at its start; its error is above")

    def begin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"go\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        """Ends the child and returns its result."""
        said, _ = self._process.communicate(timeout=_END_S)
        return msgspec.json.decode(said)


def silence_advice() -> None:
    """Logs no advice on servers: those of a bench keep nothing on their disks, which its facts say once."""
    logging.getLogger(SERVERS).setLevel(logging.ERROR)


def taking_part(work: Callable[[threading.Event], Any]) -> None:
    """The child's side: ``work`` runs until the event is set, and its result is printed. A child that is never told to
    begin does nothing.
    """
    silence_advice()
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    ending = threading.Event()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work(ending)))
    thread.start()
    sys.stdin.read()
    ending.set()
    thread.join()
    # an error in the thread was printed already; the parent finds no JSON
    if found:
        sys.stdout.buffer.write(msgspec.json.encode(found[0]) + b"\n")
