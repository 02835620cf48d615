"""Prints data on stdout, everything else and the log on stderr, and puts the engine's errors, which name arguments of
Python, in the words of the command line. Called by all commands.

What is shown may hold texts of others: reasons, errors, payloads, names. Here, and in ``table``, each character of them
that steers a terminal is printed as an escape, so no command has to.

>>> in_options("dedup=5.0 was given without id=")
'--dedup 5.0 was given without --id'
>>> in_options("pushes with durability= are refused")
'pushes with --durability are refused'
>>> in_options("max_attempts=0 is not possible in https://example.org/#max_attempts=0")
'--max-attempts 0 is not possible in https://example.org/#max_attempts=0'
"""

from __future__ import annotations

import datetime as dt
import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from shardq.core.model.arguments import ARGUMENT
from shardq.core.model.printable import printable, printable_json
from shardq.core.model.task_options import OPTIONS

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
    """Prints lines on stderr; with ``--log json`` as one of the log, so that all that is there can be read as that."""
    for handler in logging.getLogger("shardq").handlers:
        if isinstance(handler, _Stderr) and isinstance(handler.formatter, JsonFormatter):
            level = logging.ERROR if text.startswith("error:") else logging.INFO
            handler.emit(logging.LogRecord("shardq.cli", level, __file__, 0, text, None, None))
            return
    _print(text)


def _print(text: str) -> None:
    """Prints lines on stderr. The command goes on if they can not be written."""
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


_WORDS = {option.name: option.word for option in OPTIONS}

_PHRASES = (
    (re.compile(r" \(timeout=\)"), ""),
    (re.compile(r"open the engine with the codec= that wrote it"), "a program that has the codec can read it"),
    (re.compile(r"\bresize\((\d+)\)"), r"`shardq resize \1`"),
    (re.compile(r"\bengine\.schedules\(\) and `shardq every` list"), "`shardq every` lists"),
    (re.compile(r"\bNone for no limit"), "--off for no limits"),
    (re.compile(r"\bNone to stop"), "--off to stop"),
)


def in_options(text: str) -> str:
    """The text with arguments as options of a command."""

    def option(found: re.Match[str]) -> str:
        name, value = found.groups()
        if name is None:
            return found[0]
        flag = f"--{_WORDS.get(name, name).replace('_', '-')}"
        return f"{flag} {value.strip(chr(34))}" if value else flag

    text = ARGUMENT.sub(option, text)
    for pattern, words in _PHRASES:
        text = pattern.sub(words, text)
    return text


# ---- the log

TEXT, JSON = "text", "json"

_OF_LOGGING = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The attributes of every record; all others are its fields."""


def set_up_logging(*, verbose: bool, form: str | None = None) -> None:
    """Sends the engine's log to stderr: warnings and errors, with ``verbose`` also what it does.

    ``form``: TEXT or JSON, with times, for a command that goes on; None for one that ends soon.
    """
    log = logging.getLogger("shardq")
    log.setLevel(logging.INFO if verbose else logging.WARNING)
    # `shardq stats` prints advice; a script that pushes every minute would print it every minute
    logging.getLogger("shardq.advice").setLevel(logging.INFO if verbose else logging.ERROR)
    if not any(isinstance(each, _Stderr) for each in log.handlers):  # `work` sets it up before its engine is known
        log.addHandler(_handler(form))
    log.propagate = False


def set_up_root(*, verbose: bool, form: str) -> None:
    """Prints the log of the user's program in the same form, unless it has set up logging by itself: then ours goes
    its way, too.
    """
    root, log = logging.getLogger(), logging.getLogger("shardq")
    if root.handlers:
        for handler in [each for each in log.handlers if isinstance(each, _Stderr)]:
            log.removeHandler(handler)
        log.propagate = True
        return
    root.addHandler(_handler(form))
    root.setLevel(logging.INFO if verbose else logging.WARNING)


def _handler(form: str | None) -> logging.Handler:
    handler = _Stderr()
    handler.setFormatter(JsonFormatter() if form == JSON else _Text(timed=form is not None))
    return handler


class _Stderr(logging.Handler):
    """Writes to the present ``sys.stderr``: a live table replaces it, to print above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001  as logging does it: a line that can't be formatted ends no program
            self.handleError(record)
        else:
            _print(text)


class _Text(logging.Formatter):
    def __init__(self, *, timed: bool) -> None:
        super().__init__()
        self._timed = timed

    def format(self, record: logging.LogRecord) -> str:
        text = f"{record.levelname.lower()}: {super().format(record)}"
        return f"{_time(record)} {record.name} {text}" if self._timed else text


class JsonFormatter(logging.Formatter):
    """A record as a JSON object on one line: ts, level, logger, message, its fields, and exception."""

    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, Any] = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        shown |= {key: value for key, value in vars(record).items() if key not in _OF_LOGGING and key not in shown}
        if record.exc_info:
            shown["exception"] = self.formatException(record.exc_info)
        return printable_json(msgspec.json.encode(shown, enc_hook=str)).decode()


def _time(record: logging.LogRecord) -> str:
    """The time of a record in UTC, with milliseconds."""
    return dt.datetime.fromtimestamp(record.created, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{record.msecs:03.0f}Z"
