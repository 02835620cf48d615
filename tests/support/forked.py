"""Runs of the command in processes that have it loaded: forked from a server that loads it once a session.

A start of Python and of all modules takes 0.4 s of CPU, a fork some milliseconds. What a process is by its start (the
encoding of its streams, its script, signals while it loads) is tested with real starts: ``Shell.start``.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerContext
from pathlib import Path

IN, OUT, ERR = ("stdin", "stdout", "stderr")


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.loaded"])
    return context


CONTEXT = _context()


def run(
    words: Sequence[str],
    *,
    stdin: bytes,
    environment: Mapping[str, str],
    cwd: Path | None,
    folder: Path,
    timeout: float,
) -> tuple[int, bytes, bytes]:
    """The exit code and the output of ``shardq WORDS``. ``folder``: an empty one, for the streams."""
    (folder / IN).write_bytes(stdin)
    process = CONTEXT.Process(
        target=_command, args=(list(words), dict(environment), cwd or Path.cwd(), folder), daemon=True
    )
    process.start()
    try:
        process.join(timeout)
        if process.exitcode is None:
            raise TimeoutError(f"shardq {' '.join(words)} has not ended within {timeout:g} s")
        return process.exitcode, (folder / OUT).read_bytes(), (folder / ERR).read_bytes()
    finally:
        process.kill()
        process.join()
        process.close()


def _command(words: list[str], environment: dict[str, str], cwd: Path, folder: Path) -> None:
    """In the process: as if it had just begun."""
    for number, (name, mode) in enumerate(((IN, "r"), (OUT, "w"), (ERR, "w"))):
        with (folder / name).open(mode) as stream:
            os.dup2(stream.fileno(), number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.argv = ["shardq", *words]

    from shardq.cli import main

    try:
        sys.exit(main())
    finally:
        atexit._run_exitfuncs()
