"""health: the command that says if all is well, by its exit code; ``stats`` shows the same verdict. doctor: the command
that looks at everything that may be wrong, says what to do, and mends what is safe to mend.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import click

from shardq import Health
from shardq.cli.options import TIME, Given, Whole, command, shared
from shardq.cli.output import complain, in_options, say, tell
from shardq.cli.session import looking, opened
from shardq.core.drivers.sync import Driver
from shardq.core.operation import run
from shardq.engine.around import (
    LOOKED_AT,
    MAX_DEAD,
    MAX_LATE_S,
    MAX_READY_AGE_S,
    OK,
    TABLE,
    EngineAccess,
    Wrong,
    connected,
    find_all,
    forms,
    mute,
    unsaid,
)
from shardq.errors import BadInput, ShardqError

WELL, NOT_WELL, UNKNOWN = 0, 1, 2
"""The exit codes of a verdict."""

F = TypeVar("F", bound=Callable[..., Any])


def _timeout(default: str) -> Callable[[F], F]:
    """--timeout, for ``bounded``."""
    return click.option(
        "--timeout", type=TIME, default=default, show_default=True, help="How long it may take, all in all."
    )


class TimedOut(BaseException):
    """No ``Exception``: nothing on its way takes it for an error of a call."""


@command("Say whether all is well; the exit code does, too.")
@click.option(
    "--max-late",
    type=TIME,
    default=f"{MAX_LATE_S:g}s",
    show_default=True,
    help="How long a scheduled task may be overdue.",
)
@click.option(
    "--max-ready-age",
    type=TIME,
    default=f"{MAX_READY_AGE_S:g}s",
    show_default=True,
    help="How long a ready task may wait for a worker, as far as shardq has looked.",
)
@click.option(
    "--max-dead",
    type=Whole(0),
    default=MAX_DEAD,
    show_default=True,
    help="How many tasks may have died in the last ten minutes.",
)
@_timeout("10s")
@shared
def health(given: Given, max_late: float, max_ready_age: float, max_dead: int, timeout: float) -> int:
    """Say whether all is well: every shard and route is served, no task is late, workers take the ready tasks, few
    tasks die, no worker hangs, and servers, replicas and clocks are as they should be.

    A killed dispatcher is missed after three seconds, or eight if it was the only one. How long tasks have been
    ready is known from the second look on, by any process: each `shardq health` looks, and `shardq run` looks every
    ten seconds, unless it is --quiet.

    example:
      shardq health
      shardq health --max-late 2s --max-ready-age 10m --max-dead 0
      * * * * *  shardq health > /tmp/health || mail -s shardq me < /tmp/health

    exit codes:
      0  all is well
      1  something is wrong: a line says each reason
      2  it can't be told: no server reached, a wrong password, no such
         engine, no answer in time; or the command line is not understood
    """

    def look() -> int:
        with looking(given) as engine:
            seen = engine.health(max_late, max_ready_age, max_dead)
        if given.json:
            tell(forms.verdict(seen))
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
    given.answer(forms.no_verdict(why), f"can't tell: {in_options(why)}")
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


@command("Look for all that may be wrong, and say what to do.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help=f"Look at every id, not at {LOOKED_AT} of each shard and state, and into every shard that there can be.",
)
@click.option("--fix", is_flag=True, help="Repair what can be repaired, and say what was done. No record is removed.")
@_timeout("60s")
@shared
def doctor(given: Given, everything: bool, fix: bool, timeout: float) -> int:
    """Look for everything that may be wrong: versions, servers, replicas, clocks, connections and open files;
    shards that nobody serves, or whose dispatcher does not know the topology; tasks in shards out of use; whatever
    `shardq health` finds; ids in the wrong shard, records that no worker will ever get, and ids without a record.

    It looks at a sample of the ids, or with --all at each. `shardq health` is quicker.

    example:
      shardq doctor
      shardq doctor --all --fix --timeout 10m
      shardq doctor --json | jq -r '.findings[]?.text'

    exit codes:
      0  nothing was found, or all that was found is mended
      1  something is wrong: a line says what, and what to do
      2  it can't be told: no server reached, a wrong password, no such
         engine, no answer in time; or the command line is not understood
    """

    mute()  # it shows all findings by itself

    def look() -> int:
        with opened(given) if fix else looking(given) as engine, connected(EngineAccess(engine).options) as driver:
            code = WELL
            for check, found in find_all(engine, driver, everything=everything):
                code = max(code, _tell(given, driver, check, found, fix=fix))
        return code

    return bounded(given, look, timeout)


def _tell(given: Given, driver: Driver, check: str, some: list[Wrong], *, fix: bool) -> int:
    """Shows what a check found, and mends it if that is wanted and possible. Returns the exit code that it leaves."""
    fixes = {each.finding: TABLE[each.finding.name].fix if each.mend else None for each in some}
    wrong = [each for each in some if each.finding.severity != "info"]
    lines = [] if wrong else [f"{check:<12} ok: {OK[check]}"]
    for finding, mend in fixes.items():
        head = f"{'':<12} " if finding.severity == "info" else f"{check:<12} WRONG: "
        lines.append(head + in_options(str(finding) if mend is None else finding.text))
        lines += [f"{'':<12} --fix would {mend}"] if mend is not None else []
    given.answer(forms.check(check, fixes), "\n".join(lines))
    return max([_mended(given, driver, check, each) if fix and each.mend else NOT_WELL for each in wrong], default=WELL)


def _mended(given: Given, driver: Driver, check: str, wrong: Wrong) -> int:
    assert wrong.mend is not None, "it can be mended"
    fixed, left = run(driver, wrong.mend(), None)
    done = TABLE[wrong.finding.name].fix
    text = f"{'':<12} fixed {fixed:,}: {done}"
    if left:
        text += f"\n{'':<12} {left:,} {'is' if left == 1 else 'are'} left"
    given.answer({"check": check, "fixed": fixed, "left": left, "fix": done}, text)
    return NOT_WELL if left else WELL
