"""Builds of shardq from this repository's history, and processes of them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from shardq import Engine
from shardq.core.operation import run
from shardq.engine.internals import Internals
from shardq.engine.parts import connected
from tests.support.programs import plain_environment

ROOT = Path(__file__).parent.parent.parent
PROCESS = Path(__file__).parent / "process.py"

BEFORE_FORMATS = "458f224"
"""A build that stores what format 1 is, and knows of no formats."""


class NoHistoryError(Exception):
    """This checkout lacks the revision."""


def unpacked(revision: str, folder: Path) -> Path:
    """The package of a revision, in a folder."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), "archive", "--format=zip", revision, "shardq"],
            capture_output=True,
            check=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise NoHistoryError(f"the history of this checkout has no {revision}: git fetch --unshallow gets it") from exc
    with zipfile.ZipFile(io.BytesIO(done.stdout)) as archive:  # extractall of tarfile has no filter= in Python 3.11.2
        archive.extractall(folder)
    return folder


def carried_out(engine: Engine, make: Callable[[Any], Any]) -> Any:
    """An operation that no method of an engine has."""
    with connected(Internals(engine).options) as driver:
        return run(driver, make(Internals(engine).cache), 30.0)


class Process:
    """A process of the build whose package is in a folder. On leaving the ``with`` block it ends in order, or is
    killed.
    """

    def __init__(self, build: Path, *words: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(PROCESS), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=plain_environment() | {"PYTHONPATH": str(build)},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        assert self._said() == "ready"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        finally:
            self._process.stdout.close()
        if kind is None:
            assert code == 0

    @property
    def pid(self) -> int:
        return self._process.pid

    def asked(self, command: str, *words: Any) -> Any:
        """Has it carry out a command. Returns the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *words]) + os.linesep)
        self._process.stdin.flush()
        return self._said()

    def _said(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it has ended"
        return json.loads(line)
