"""All programs share this module: their two roles, and how they tell what they did. It needs the standard library only.

A *pusher* reads orders from stdin, one JSON object a line, and answers each with a line when the tasks are stored. A
*worker* runs the peer's own worker, whose handler gives each payload to ``handled``. A payload begins with the instant
at which the task is due, so the handler knows how late it is. It keeps this in memory, and a thread writes it down
twenty times a second, as 64-bit floats.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TextIO

PAYLOAD_CHARACTERS = 98
"""100 bytes as JSON, with its two quotes."""

DUE_CHARACTERS = 17
"""``1790000000.123000``: seconds since 1970, at the head of a payload."""

WRITE_S = 0.05
"""The time between two writes: often enough to see the end of a run, and no load."""

_late = array("d")
_writing = threading.Lock()


def url() -> str:
    """Returns the URL of the server that keeps the tasks."""
    return os.environ["SHARDQ_PEERS_URL"]


def role() -> str:
    """Returns ``push`` or ``work``."""
    return sys.argv[1]


def payload(due: float) -> str:
    """Returns the payload of a task that is due then."""
    return f"{due:.6f}".ljust(PAYLOAD_CHARACTERS, "x")


def handled(payload: str) -> None:
    """Notes how late a task is. Handlers of all peers call it in their first line."""
    _late.append(time.time() - float(payload[:DUE_CHARACTERS]))
    if _writing.acquire(blocking=False):
        threading.Thread(target=_write, name="notes", daemon=True).start()


def _write() -> None:
    written = 0
    with Path(os.environ["SHARDQ_PEERS_NOTES"], f"{os.getpid()}.late").open("ab") as file:
        while True:
            count = len(_late)
            if count > written:
                file.write(_late[written:count].tobytes())
                file.flush()
                written = count
            time.sleep(WRITE_S)


def _forked() -> None:
    # the thread and its notes stay with the parent
    global _writing
    _writing = threading.Lock()
    del _late[:]


os.register_at_fork(after_in_child=_forked)


async def serve(push: Callable[[Sequence[float]], Awaitable[object]], *, chunk: int) -> None:
    """Carries out orders until stdin ends. ``push`` stores ``chunk`` of the ``dues`` at a time, for ``seconds`` at
    most.

    ``push`` returns when all of its tasks are stored.
    """
    # a library's prints go to stderr, so that none is taken for an answer
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _tell(answers, {})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        order = json.loads(line)
        dues: list[float] = order["dues"]
        pushed = 0
        began = time.perf_counter()
        while pushed < len(dues) and time.perf_counter() - began < order["seconds"]:
            part = dues[pushed : pushed + chunk]
            await push(part)
            pushed += len(part)
        _tell(answers, {"pushed": pushed, "seconds": time.perf_counter() - began})


def serve_sync(push: Callable[[Sequence[float]], object], *, chunk: int) -> None:
    """Does the same for a peer whose calls block."""

    async def blocking(dues: Sequence[float]) -> None:
        push(dues)

    asyncio.run(serve(blocking, chunk=chunk))


def _tell(answers: TextIO, what: object) -> None:
    print(json.dumps(what), file=answers, flush=True)
