"""The options of commands that take times, which ``model.durations`` reads. Called by the commands, and by
``push.lines`` for JSON lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from shardq.core.model.durations import Bound, due_range, expiry, instant, seconds

__all__ = ["Bound", "due_options", "due_range", "expiry", "instant", "read_by", "seconds"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def read_by(read: Callable[[str], T]) -> Callable[[click.Context, click.Parameter, str | None], T | None]:
    """The callback of an option whose value ``read`` reads."""

    def callback(ctx: click.Context, param: click.Parameter, value: str | None) -> T | None:
        if value is None:
            return None
        try:
            return read(value)
        except ValueError as exc:
            raise click.BadParameter(str(exc), ctx, param) from None

    return callback


def due_options(command: F) -> F:
    """Adds --delay and --at."""
    delay = click.option(
        "--delay", metavar="TIME", callback=read_by(seconds), help="From now: 90, 1.5, 90s, 5m, 1h30m, 1d."
    )
    at = click.option(
        "--at", metavar="INSTANT", callback=read_by(instant), help="2030-01-31T12:00:00Z, or seconds since 1970."
    )
    return delay(at(command))
