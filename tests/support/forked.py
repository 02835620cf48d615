"""Runs of the command in processes that have it loaded: forked from a server that loads it once a session.

A start of Python and of all modules takes 0.4 s of CPU, a fork some milliseconds. What a process is by its start (the
encoding of its streams, its script, signals while it loads) is tested with real starts: ``Shell.start``.
"""

from __future__ import annotations

import atexit
import fcntl
import multiprocessing
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
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
    with _running(words, environment, cwd, [folder / name for name in (IN, OUT, ERR)]) as process:
        process.join(timeout)
        return _code(process, words, timeout), (folder / OUT).read_bytes(), (folder / ERR).read_bytes()


def run_on_terminal(
    words: Sequence[str], *, answer: bytes, columns: int, rows: int, environment: Mapping[str, str], timeout: float
) -> tuple[int, bytes]:
    """The exit code of ``shardq WORDS``, and all that was to be seen on its terminal, where ``answer`` is typed."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        os.write(ours, answer)
        seen, deadline = b"", time.monotonic() + timeout
        with _running(words, environment, None, [Path(os.ttyname(theirs))] * 3) as process:
            ended = False
            # what it has written before its end is there to be read
            while time.monotonic() < deadline:
                readable, _, _ = select.select([ours], [], [], 0 if ended else 0.02)
                if readable:
                    seen += os.read(ours, 1 << 16)
                elif ended:
                    break
                else:
                    ended = process.exitcode is not None
            return _code(process, words, timeout), seen
    finally:
        os.close(ours)
        os.close(theirs)


@contextmanager
def _running(
    words: Sequence[str], environment: Mapping[str, str], cwd: Path | None, streams: list[Path]
) -> Iterator[BaseProcess]:
    arguments = (list(words), dict(environment), cwd or Path.cwd(), streams)
    process = CONTEXT.Process(target=_command, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()
        process.close()


def _code(process: BaseProcess, words: Sequence[str], timeout: float) -> int:
    if process.exitcode is None:
        raise TimeoutError(f"shardq {' '.join(words)} has not ended within {timeout:g} s")
    return process.exitcode


def _command(words: list[str], environment: dict[str, str], cwd: Path, streams: list[Path]) -> None:
    """In the process: as if it had just begun."""
    for number, (path, mode) in enumerate(zip(streams, "rww", strict=True)):
        with path.open(mode) as stream:
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
