"""cold: the table in which far tasks wait. Count them, load what is near, drop what is not to be sent any more."""

from __future__ import annotations

import datetime as dt

import click
import msgspec

from shardq import Engine
from shardq.cli.options import INSTANT, Given, command, shared
from shardq.cli.output import complain
from shardq.cli.session import opened
from shardq.core.model.printable import quoted
from shardq.engine.around import EngineAccess, counted, of_cold
from shardq.features.cold.report import ColdStats


@click.group(
    short_help="Look at the tasks that wait in a database.",
    epilog="""\b
example:
  export SHARDQ_COLD=postgresql://app@127.0.0.1/shop
  shardq cold status --name reminders
  shardq cold load --name reminders
  shardq cold drop --due-before 2030-01-31T12:00:00Z --name reminders""",
)
def cold() -> None:
    """Look at the table of an engine's cold=, where tasks wait that are due much later.

    Dispatchers with --cold, or with cold= in a program, load the tasks by themselves when they are near.
    """


@command("Count the tasks that wait.", of=cold)
@shared
def status(given: Given) -> int:
    """Show how many tasks wait in the table, and the hour in which the first of them is due.

    exit codes:
      0  all is well
      1  it can't be read, or what was due is there still
    """
    with opened(given) as engine:
        seen = _table(engine)
        found = list(of_cold(seen))
        given.answer(msgspec.to_builtins(seen), shown(seen))
        if not given.json:
            for problem in found:
                complain(f"error: {problem}")
    return 1 if found else 0


def shown(seen: ColdStats) -> str:
    """A table in a line; also for ``stats``."""
    if seen.tasks is None:
        return "it can't be read"
    tasks = f"{'' if seen.exact else 'at least ' if seen.at_least else 'about '}{counted(seen.tasks, 'task')}"
    first = f", the first due in the hour from {seen.first:%Y-%m-%d %H:%M} UTC" if seen.first is not None else ""
    own = f"; also ids of your own in {', '.join(map(quoted, seen.topics))}" if seen.topics else ""
    return f"{tasks}{first}; loaded when due within {seen.after:,.0f} s{own}"


@command("Load near tasks now.", of=cold)
@shared
def load(given: Given) -> int:
    """Move the tasks that are due within cold_after to Redis, once. Use it while no dispatcher runs.

    exit codes:
      0  nothing that is near is left
      1  something is: the reason is printed
    """
    with opened(given) as engine:
        _table(engine)
        report = EngineAccess(engine).load_cold()
        given.answer({"loaded": report.loaded, "problems": report.problems}, f"{counted(report.loaded, 'task')} loaded")
        if not given.json:
            for problem in report.problems:
                complain(f"error: {problem}")
    return 1 if report.problems else 0


@command("Drop tasks that were due before an instant.", of=cold)
@click.option("--due-before", type=INSTANT, required=True, help="2030-01-31T12:00:00Z, or seconds since 1970.")
@shared
def drop(given: Given, due_before: float | dt.datetime) -> None:
    """Remove the tasks that are due before an instant from the table: for example, after an outage, the ones that
    are too late to be useful. For tasks that are in Redis already, use `shardq cancel --due`.
    """
    with opened(given) as engine:
        _table(engine)
        count = EngineAccess(engine).drop_cold(due_before)
        given.answer({"dropped": count}, f"{counted(count, 'task')} dropped")


def _table(engine: Engine) -> ColdStats:
    seen = engine.stats(shards=False).cold
    if seen is None:
        raise click.UsageError("give the database as --cold, or as $SHARDQ_COLD")
    return seen
