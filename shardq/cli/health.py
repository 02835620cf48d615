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

from shardq.cli.options import TIME, Given, Whole, command, shared
from shardq.cli.output import complain, in_options, say, tell
from shardq.cli.session import looking, opened
from shardq.core.drivers.sync import Driver
from shardq.core.operation import Operation, run
from shardq.engine import Engine, Health, engine_wide, forms
from shardq.engine import doctor as checks
from shardq.engine.advice import mute, named, unsaid
from shardq.engine.doctor import LOOKED_AT, OK, Finding
from shardq.engine.health import MAX_DEAD, MAX_LATE_S, MAX_READY_AGE_S
from shardq.engine.internals import Internals
from shardq.engine.options import STATS_TIMEOUT_S
from shardq.engine.parts import connected
from shardq.errors import AccessDenied, BadInput, ShardqError

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
      shardq doctor --json | jq -r 'select(.ok | not).text'

    exit codes:
      0  nothing was found, or all that was found is mended
      1  something is wrong: a line says what, and what to do
      2  it can't be told: no server reached, a wrong password, no such
         engine, no answer in time; or the command line is not understood
    """

    mute()  # it shows all advice by itself

    def look() -> int:
        with opened(given) if fix else looking(given) as engine, connected(Internals(engine).options) as driver:
            code = WELL
            for check, found in _all_checks(engine, driver, everything=everything):
                if not found:
                    _show(given, check, OK[check] + (_disks(engine, driver) if check == "persistence" else ""))
                for each in found:
                    code = max(code, _treat(given, driver, each, fix=fix))
        return code

    return bounded(given, look, timeout)


def _disks(engine: Engine, driver: Driver) -> str:
    slots = {driver.node_of(keys.slot): keys.slot for keys in Internals(engine).cache.span()}
    return run(driver, checks.tell_disks(slots), STATS_TIMEOUT_S)


def _all_checks(engine: Engine, driver: Driver, *, everything: bool) -> Iterator[tuple[str, list[Finding]]]:
    """Each check with what it found, in their order."""
    cache = Internals(engine).cache
    # first: every other look tells a shard the topology that it missed
    epochs = _carried_out(driver, "epochs", checks.find_epochs(cache))
    counts = run(driver, engine_wide.count_shards(cache, {}), STATS_TIMEOUT_S)
    epochs += _carried_out(driver, "epochs", checks.find_outside(cache, everything=everything))
    nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in counts}
    found = list(
        checks.findings_on_servers(
            run(driver, Internals(engine).examine(driver, counts), STATS_TIMEOUT_S),
            run(driver, engine_wide.replication(counts, nodes), STATS_TIMEOUT_S),
        )
    )
    found += checks.findings_on_tasks(engine.health())
    seen = [keys for keys, told in counts if not isinstance(told, ShardqError)]
    unseen = [(keys.shard, told) for keys, told in counts if isinstance(told, ShardqError)]
    if unseen:
        text = f"{named([shard for shard, _ in unseen])} can't be seen, and what follows is without: {unseen[0][1]}"
        found.append(Finding("coverage", text))
    later = {
        "versions": checks.find_versions(cache),
        "places": checks.find_misplaced(cache, seen, everything=everything),
        "records": checks.find_orphans(cache, seen, everything=everything),
    }
    for check in OK:
        if check == "epochs":
            yield check, epochs
        elif check in later:
            yield check, _carried_out(driver, check, later[check])
        else:
            yield check, [each for each in found if each.check == check]


def _carried_out(driver: Driver, check: str, operation: Operation[list[Finding]]) -> list[Finding]:
    try:
        return run(driver, operation, STATS_TIMEOUT_S)
    except ShardqError as exc:
        why = "the user of the server may not look" if isinstance(exc, AccessDenied) else "it can't be looked at"
        return [Finding(check, f"{why}: {exc}")]


def _treat(given: Given, driver: Driver, found: Finding, *, fix: bool) -> int:
    """Shows a finding, and mends it if that is wanted and possible. Returns the exit code that it leaves."""
    _show(given, found.check, found.text, found)
    if not fix or found.mend is None:
        return NOT_WELL
    fixed, left = run(driver, found.mend(), None)
    text = f"{'':<12} fixed {fixed:,}: {found.fix}"
    if left:
        text += f"\n{'':<12} {left:,} {'is' if left == 1 else 'are'} left"
    given.answer({"check": found.check, "fixed": fixed, "left": left, "fix": found.fix}, text)
    return NOT_WELL if left else WELL


def _show(given: Given, check: str, text: str, found: Finding | None = None) -> None:
    fix = found.fix or None if found else None
    said = f"{check:<12} {'ok: ' if found is None else 'WRONG: '}{in_options(text)}"
    if fix:
        said += f"\n{'':<12} --fix would {fix}"
    given.answer({"check": check, "ok": found is None, "text": text, "fix": fix}, said)
