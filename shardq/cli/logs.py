"""How the command prints logs: in short lines, with times in ``run`` and ``work``, or as JSON with ``--log json``."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import click
import msgspec

from shardq.cli.options import setting
from shardq.cli.output import complain
from shardq.core.model.printable import printable_json

TEXT, JSON = "text", "json"

_OF_LOGGING = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))
"""The attributes of every record; all others are its fields."""

log_option = setting(
    "--log",
    type=click.Choice([TEXT, JSON]),
    default=TEXT,
    help="Print each line of the log as text, or as a JSON object with its fields. Default: text.",
)


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
            complain(text)


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
