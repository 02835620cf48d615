"""far: the table in which far tasks wait. Count them, load what is near, say what is near, drop what is not to be sent
any more."""

from __future__ import annotations

import datetime as dt

import click
import msgspec

from shardq import Engine
from shardq.cli.options import INSTANT, TIME, Given, command, shared
from shardq.cli.output import complain
from shardq.cli.session import opened
from shardq.engine.around import EngineAccess, counted, of_far
from shardq.features.far.report import FarStats


@click.group(
    short_help="Look at the tasks that wait in a database.",
    epilog="""\b
example:
  export SHARDQ_FAR=postgresql://app@127.0.0.1/shop
  shardq far status --name reminders
  shardq far load --name reminders
  shardq far ahead 2h --name reminders
  shardq far drop --due-before 2030-01-31T12:00:00Z --name reminders""",
)
def far() -> None:
    """Look at the table of an engine's far=, where tasks wait that are due much later.

    Dispatchers with --far, or with far= in a program, load the tasks by themselves when they are near.
    """


@command("Count the tasks that wait.", of=far)
@shared
def status(given: Given) -> int:
    """Show how many tasks wait in the table, and when the first of them is due.

    exit codes:
      0  all is well
      1  it can't be read, or what was due is there still
    """
    with opened(given) as engine:
        seen = _table(engine)
        found = list(of_far(seen))
        given.answer(msgspec.to_builtins(seen), shown(seen))
        if not given.json:
            for problem in found:
                complain(f"error: {problem}")
    return 1 if found else 0


def shown(seen: FarStats) -> str:
    """A table in a line; also for ``stats``."""
    if seen.tasks is None:
        return "it can't be read"
    tasks = f"{'' if seen.exact else 'at least ' if seen.at_least else 'about '}{counted(seen.tasks, 'task')}"
    first = f", the first due at {seen.first:%Y-%m-%d %H:%M} UTC" if seen.first is not None else ""
    return f"{tasks}{first}; loaded when due within {seen.ahead:,.0f} s"


@command("Load near tasks now.", of=far)
@shared
def load(given: Given) -> int:
    """Move the tasks that are due within ahead to Redis, once. Use it while no dispatcher runs.

    exit codes:
      0  nothing that is near is left
      1  something is: the reason is printed
    """
    with opened(given) as engine:
        _table(engine)
        report = EngineAccess(engine).load_far()
        given.answer({"loaded": report.loaded, "problems": report.problems}, f"{counted(report.loaded, 'task')} loaded")
        if not given.json:
            for problem in report.problems:
                complain(f"error: {problem}")
    return 1 if report.problems else 0


@command("Load what is there, after the database was restored.", of=far)
@shared
def accept(given: Given) -> None:
    """Have dispatchers go on after the database was restored from a backup. They stop then, as tasks that had been
    loaded are back, and would run twice; `shardq far status` says until when tasks were loaded.

    First drop those that are due before that. Tasks that were cancelled or rescheduled since the backup are back as
    they were then; tasks that were pushed since are lost.

    example:
      shardq far drop --due-before 2030-01-31T13:00:00Z --name reminders
      shardq far accept --name reminders
    """
    with opened(given) as engine:
        _table(engine)
        EngineAccess(engine).accept_far()
        given.answer({"accepted": True}, "loaded from now on")


@command("Change how early tasks are loaded.", of=far)
@click.argument("seconds", type=TIME)
@shared
def ahead(given: Given, seconds: float) -> None:
    """Have tasks loaded so many SECONDS before they are due, by all processes. An outage of the database, or of all
    dispatchers, that is shorter makes nothing late; and so many seconds' tasks are in Redis' memory.

    Nothing has to be restarted. Both values count for a while: until no process works by the former one any more.
    After that, you can change it again. `ahead=` in a program applies only when the table is made.

    example:
      shardq far ahead 2h --name reminders
    """
    with opened(given) as engine:
        _table(engine)
        left_s = EngineAccess(engine).change_ahead(seconds)
        when = f" (takes effect in {left_s:,.0f} s)" if left_s else ""
        given.answer({"ahead": seconds, "seconds_left": left_s}, f"loaded when due within {seconds:,.0f} s{when}")


@command("Drop tasks that were due before an instant.", of=far)
@click.option("--due-before", type=INSTANT, required=True, help="2030-01-31T12:00:00Z, or seconds since 1970.")
@shared
def drop(given: Given, due_before: float | dt.datetime) -> None:
    """Remove the tasks that are due before an instant from the table: for example, after an outage, the ones that
    are too late to be useful. For tasks that are in Redis already, use `shardq cancel --due`.
    """
    with opened(given) as engine:
        _table(engine)
        count = EngineAccess(engine).drop_far(due_before)
        given.answer({"dropped": count}, f"{counted(count, 'task')} dropped")


def _table(engine: Engine) -> FarStats:
    seen = engine.stats(shards=False).far
    if seen is None:
        raise click.UsageError("give the database as --far, or as $SHARDQ_FAR")
    return seen
