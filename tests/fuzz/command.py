"""The ``shardq`` command in this process, where a run takes some milliseconds. Programs, exit codes at the end of a
process and real terminals are tried in ``tests/cli``.
"""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest import mock

from shardq.cli.app import invoke
from tests.cli.shell import Done

CODES = (0, 1, 2)
"""How a command ends that no signal ends."""


def run(*words: str, environment: Mapping[str, str]) -> Done:
    """Runs a command line. Raises what no command may raise."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict") for _ in range(2))
    with _as_a_process(list(words), environment, out, err):
        try:
            code = invoke()
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
    texts = []
    for stream in (out, err):
        stream.flush()
        assert isinstance(stream.buffer, io.BytesIO)
        texts.append(stream.buffer.getvalue().decode())
    return Done(code, *texts)


@contextmanager
def _as_a_process(
    words: list[str], environment: Mapping[str, str], out: io.TextIOWrapper, err: io.TextIOWrapper
) -> Iterator[None]:
    """For a while this process has the arguments, the variables and the streams of a command; its logging and its
    signals are as before at the end.
    """
    before = dict(os.environ)
    log = logging.getLogger("shardq")
    levels = [(each, each.level) for each in (log, logging.getLogger("shardq.advice"))]
    handlers, propagates = list(log.handlers), log.propagate
    signals = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    kept = {name: value for name, value in before.items() if not name.startswith("SHARDQ_")}
    os.environ.clear()
    os.environ.update(kept | {"COLUMNS": "200", "LINES": "50", "TERM": "dumb"} | dict(environment))
    try:
        with mock.patch.multiple(sys, argv=["shardq", *words], stdout=out, stderr=err, stdin=io.StringIO()):
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        log.handlers[:], log.propagate = handlers, propagates
        for each, level in levels:
            each.setLevel(level)
        for number, handler in signals.items():
            signal.signal(number, handler)
