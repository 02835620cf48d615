"""health: the command that says if all is well, by its exit code. ``stats`` shows the same verdict."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from shardq.cli.durations import read_by, seconds
from shardq.cli.numbers import Whole
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import looking
from shardq.cli.words import in_options
from shardq.engine import Health
from shardq.engine.advice import unsaid
from shardq.engine.health import MAX_DEAD, MAX_LATE_S, MAX_READY_AGE_S
from shardq.errors import BadInput, ShardqError

WELL, NOT_WELL, UNKNOWN = 0, 1, 2
"""The exit codes of a verdict."""

TIMEOUT_S = 10.0

F = TypeVar("F", bound=Callable[..., Any])


def timeout_option(default_s: float) -> Callable[[F], F]:
    """--timeout, for ``bounded``."""
    return click.option(
        "--timeout",
        metavar="TIME",
        default=f"{default_s:g}s",
        show_default=True,
        callback=read_by(seconds),
        help="How long it may take, all in all.",
    )


class TimedOut(BaseException):
    """No ``Exception``: nothing on its way takes it for an error of a call."""


@click.command(
    short_help="If all is well, by the exit code.",
    epilog=f"""\b
example:
  shardq health
  shardq health --max-late 2s --max-ready-age 10m --max-dead 0
  * * * * *  shardq health > /tmp/health || mail -s shardq me < /tmp/health
\b
exit codes:
  {WELL}  all is well
  {NOT_WELL}  something is wrong: a line says each reason
  {UNKNOWN}  it can't be told: no server reached, a wrong password, no such
     engine, no answer in time; or the command line is not understood""",
)
@click.option(
    "--max-late",
    metavar="TIME",
    callback=read_by(seconds),
    help=f"How long a scheduled task may be overdue. Default: {MAX_LATE_S:g}s.",
)
@click.option(
    "--max-ready-age",
    metavar="TIME",
    callback=read_by(seconds),
    help=f"How long a ready task may wait for a consumer, as far as anybody has looked. Default: {MAX_READY_AGE_S:g}s.",
)
@click.option(
    "--max-dead",
    type=Whole(0),
    metavar="N",
    default=MAX_DEAD,
    show_default=True,
    help="How many tasks may have died in the last ten minutes.",
)
@timeout_option(TIMEOUT_S)
@shared
@pass_given
def health(given: Given, max_late: float | None, max_ready_age: float | None, max_dead: int, timeout: float) -> int:
    """Say if all is well: somebody serves every shard and every route, no task is late, ready tasks are taken by
    workers that know them, few die, no worker hangs, servers, replicas and clocks are as they should be.

    A dispatcher that has just been killed is missed after three seconds, or eight if it was the only one. How long
    tasks have been ready is known from the second look on, by anybody: `shardq run` looks every ten seconds, unless it
    is --quiet, and so does each `shardq health`.
    """

    def look() -> int:
        with looking(given) as engine:
            seen = engine.health(
                MAX_LATE_S if max_late is None else max_late,
                MAX_READY_AGE_S if max_ready_age is None else max_ready_age,
                max_dead,
            )
        if given.json:
            tell(verdict_shown(seen))
        else:
            say_verdict(seen)
            for warning in unsaid(seen.warnings):
                complain(in_options(warning))
        return exit_code(seen)

    return bounded(given, look, timeout)


def exit_code(seen: Health) -> int:
    """The exit code of a verdict; one for which no shard could be seen tells nothing."""
    if all(shard.error for shard in seen.stats.shards):
        return UNKNOWN
    return WELL if seen.ok else NOT_WELL


def say_verdict(seen: Health) -> None:
    """Prints the verdict, a line for each reason."""
    for reason in seen.reasons:
        say(f"not ok: {in_options(reason)}")
    if seen.ok:
        say("ok")


def verdict_shown(seen: Health) -> dict[str, Any]:
    return {"ok": seen.ok, "reasons": seen.reasons, "kinds": seen.kinds, "warnings": seen.warnings}


def bounded(given: Given, look: Callable[[], int], timeout: float) -> int:
    """Returns what the look does, or ``UNKNOWN`` when it fails or takes too long; a wrong command line is raised."""
    if not 0.1 <= timeout <= 3600:
        raise click.UsageError("--timeout is from 0.1 s to an hour")
    try:
        with _alarm(timeout):
            return look()
    except BadInput:
        raise
    except TimedOut:
        why = f"no verdict within {timeout:g} s; a server does not answer, or give it longer with --timeout"
    except (ShardqError, OSError) as exc:
        why = str(exc)
    if given.json:
        tell({"ok": None, "reasons": [f"it can't be told: {why}"], "kinds": [], "warnings": []})
    else:
        say(f"can't tell: {in_options(why)}")
    return UNKNOWN


@contextmanager
def _alarm(after: float) -> Iterator[None]:
    """Raises TimedOut in this block when it takes too long."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimedOut

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, after)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
