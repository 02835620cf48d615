"""Prints data on stdout, everything else on stderr. Called by all commands.

What is shown may hold texts of others: reasons, errors, payloads, names. Here, and in ``table``, each character of them
that steers a terminal is printed as an escape, so no command has to.
"""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from shardq.core.dispatcher import Lateness
from shardq.core.model.printable import printable, printable_json

STDOUT, STDERR = 1, 2


def prepare() -> None:
    """Prepares the standard streams: a command may run with one closed, or with an encoding that lacks characters."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            # or a socket would get the number, and what is printed
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  for as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  as above
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="backslashreplace")


def say(text: str) -> None:
    """Prints lines for people on stdout."""
    click.echo(shown(text), file=sys.stdout)


def complain(text: str) -> None:
    """Prints lines on stderr. The command goes on if nobody can read them."""
    try:
        click.echo(shown(text), file=sys.stderr)
    except OSError:
        give_up(STDERR)


def shown(text: str) -> str:
    """The lines as they are printed: only ends of lines and tabs go to the terminal as they are."""
    return printable(text, keep="\n\t")


def give_up(*descriptors: int) -> None:
    """Discards what is written there from now on, also at exit: the reader has gone, or the disk is full."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def going_on() -> Iterator[None]:
    """A block whose output is not what the command is for. What can't be written is dropped: else it would be tried
    again, and fail, when the command ends. What is said later is tried anew, as a disk may be full for a while.
    """
    try:
        yield
    except OSError:
        stdout = os.dup(STDOUT)
        give_up(STDOUT)
        sys.stdout.flush()
        os.dup2(stdout, STDOUT)
        os.close(stdout)


def tell(value: Any) -> None:
    """Prints a JSON object on one line of stdout."""
    click.echo(printable_json(msgspec.json.encode(value)))  # bytes: JSON is UTF-8, whatever the terminal is


def payload_shown(payload: Any) -> dict[str, Any]:
    """A payload as a field of a JSON object: bytes as text if they are UTF-8, else in base64. What JSON can't say, such
    as an extension of MessagePack, is shown as Python writes it.
    """
    if not isinstance(payload, bytes):
        try:
            msgspec.json.encode(payload)
        except (TypeError, ValueError, RecursionError):
            return {"payload_repr": repr(payload)}
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
