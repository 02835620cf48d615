"""Processes of builds that differ from this one in the formats and features that they know, and no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from shardq import Engine
from shardq.core.layout import formats
from shardq.core.operation import run
from shardq.engine.access import EngineAccess
from shardq.engine.wiring import connected

PRESENT = formats.FORMAT
NEXT = PRESENT + 1
PLANTED = "planted"
"""A feature that only tests have: builds of the next format know it."""


def carried_out(engine: Engine, make: Callable[[Any], Any]) -> Any:
    """An operation that no method of an engine has."""
    with connected(EngineAccess(engine).options) as driver:
        return run(driver, make(EngineAccess(engine).cache), 30.0)


class Process:
    """A process of the build that writes a format. On leaving the ``with`` block it ends in order, or is killed."""

    def __init__(self, format: int, *words: object) -> None:
        features = PLANTED if format == NEXT else ""
        self.format = format
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.versions.process", *map(str, (format, features, *words))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
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
