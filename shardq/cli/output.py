"""Speaking: data on stdout, everything else on stderr. Used by all commands."""

from __future__ import annotations

import base64
import io
import logging
import os
import sys
from typing import Any

import click
import msgspec

from shardq.dispatcher import Lateness

STDOUT, STDERR = 1, 2


def prepare() -> None:
    """Makes the standard streams such that nothing said can fail for want of one, or of a character."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # a socket would get its number, and then what is said elsewhere
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  for as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  as above
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """A line for people, on stdout."""
    click.echo(text, file=sys.stdout)


def complain(text: str) -> None:
    """A line on stderr. That nobody can be told is no reason to fail."""
    try:
        click.echo(text, file=sys.stderr)
    except OSError:
        give_up(STDERR)


def give_up(*descriptors: int) -> None:
    """Nothing more is written there, not even at exit: who read it has gone, or its disk is full."""
    for descriptor in descriptors:
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def tell(value: Any) -> None:
    """One JSON object, on one line of stdout."""
    click.echo(msgspec.json.encode(value))  # bytes: JSON is UTF-8, whatever the terminal is


def payload_shown(payload: Any) -> dict[str, Any]:
    """A payload as a part of a JSON object: bytes as text where they are text."""
    if not isinstance(payload, bytes):
        return {"payload": payload}
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode()}


def lateness_shown(lateness: Lateness) -> dict[str, int | None]:
    return {
        "tasks": lateness.count,
        "p50_ms": lateness.p50_ms,
        "p99_ms": lateness.p99_ms,
        "max_ms": lateness.max_ms,
    }


def milliseconds(ms: int | None) -> str:
    """Latenesses are whole ms, rounded down.

    >>> milliseconds(None), milliseconds(0), milliseconds(1234)
    ('-', '<1', '1,234')
    """
    if ms is None:
        return "-"
    return f"{ms:,}" if ms else "<1"


def set_up_logging(*, verbose: bool) -> None:
    """The engine's log goes to stderr: warnings, with ``verbose`` all that it says."""
    log = logging.getLogger("shardq")
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    # `shardq stats` tells it, and a script that pushes each minute need not hear it each minute
    logging.getLogger("shardq.advice").setLevel(logging.INFO if verbose else logging.ERROR)
    log.addHandler(_Stderr())
    log.propagate = False


class _Stderr(logging.Handler):
    """To whatever stderr is at the moment: a live table takes it over, to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(f"{record.levelname.lower()}: {self.format(record)}")
