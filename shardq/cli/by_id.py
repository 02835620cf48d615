"""get, cancel, reschedule and requeue: commands on tasks by id. Three of them also take all tasks that match."""

from __future__ import annotations

import datetime as dt
from typing import Any

import click
import msgspec

from shardq.cli.bulk import ENDED, BulkCommand, bulk_options
from shardq.cli.filters import Filter, Range, filter_options, tag_option, topic_option
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import payload_shown, say, tell
from shardq.cli.parsers import due_options
from shardq.cli.session import opened
from shardq.core.model.task import Outcome, TaskInfo
from shardq.features.listing.bulk import STATES


@click.command(
    short_help="Show a task.",
    epilog="""\b
example:
  shardq get email/welcome-7
  shardq get AZr3kQ0xYp2LmA --json""",
)
@click.argument("id")
@shared
@pass_given
def get(given: Given, id: str) -> int:
    """Show the task ID: its state, its due time and its payload; exit 1 when it is gone."""
    with opened(given) as engine:
        task = engine.get(id)
    if task is None:
        if given.json:
            tell({"id": id, "state": "gone"})
        else:
            say("gone")
        return 1
    shown = _shown(task)
    if given.json:
        tell(shown)
        return 0
    for field, value in shown.items():
        if value not in (None, {}) and (field, value) != ("tags", []):
            text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
            say(f"{field:<14} {text or repr(text)}")
    return 0


def _shown(task: TaskInfo) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(task, payload=None))
    del fields["payload"]
    return fields | payload_shown(task.payload)


@click.command(
    short_help="Cancel tasks: by id, or all that match.",
    epilog=f"""\b
example:
  shardq cancel email/welcome-7
  shardq cancel AZr3kQ0xYp2LmA AZr3kQ0xYp2LmB
  shardq cancel --topic mail --state scheduled --due 0..1h
  shardq cancel --due ..-1d --dry-run              (overdue for a day)
  shardq cancel --tag user-42 --yes --json | jq .running

{ENDED}""",
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@filter_options(STATES["cancel"])
@bulk_options
@shared
@pass_given
def cancel(
    given: Given,
    ids: tuple[str, ...],
    topic: str | None,
    state: str | None,
    due: Range | None,
    tag: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Remove tasks that no worker has leased: those with the IDs; exit 1 unless all of them were removed. Or all
    that match, scheduled, ready and dead; they are counted, and you are asked, before the first is removed. To remove
    all tasks of a topic, `shardq purge` is faster. --tag alone misses none that was pushed before, also while the
    number of shards changes.
    """
    many = BulkCommand(given, "cancel", Filter(topic, state, due, tag), everything, dry_run, yes)
    if many.check(ids):
        return many.run()
    with opened(given) as engine:
        return told(given, {id: engine.cancel(id) for id in ids})


@click.command(
    short_help="Give tasks another due time: by id, or all that match.",
    epilog=f"""\b
example:
  shardq reschedule email/welcome-7 --delay 2h
  shardq reschedule email/welcome-7 --at 2030-01-31T12:00:00Z
  shardq reschedule --topic mail --due ..1h --delay 1h

{ENDED}""",
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@due_options
@filter_options(STATES["reschedule"])
@bulk_options
@shared
@pass_given
def reschedule(
    given: Given,
    ids: tuple[str, ...],
    delay: float | None,
    at: float | dt.datetime | None,
    topic: str | None,
    state: str | None,
    due: Range | None,
    tag: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Give tasks another due time: those with the IDs; exit 1 unless all of them have it. Or all that match, scheduled
    and ready: one due time for all, so --delay counts from when the command begins; they are counted, and you are
    asked, before the first is changed.
    """
    if (delay is None) == (at is None):
        raise click.UsageError("give the new due time, as --delay or as --at")
    time = {"delay": delay, "at": at}
    many = BulkCommand(given, "reschedule", Filter(topic, state, due, tag), everything, dry_run, yes, time)
    if many.check(ids):
        return many.run()
    with opened(given) as engine:
        return told(given, {id: engine.reschedule(id, delay=delay, at=at) for id in ids})


@click.command(
    short_help="Schedule dead tasks again: by id, or all that match.",
    epilog=f"""\b
example:
  shardq requeue email/welcome-7
  shardq requeue --topic email
  shardq requeue --all --dry-run

{ENDED}""",
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@topic_option
@tag_option
@bulk_options
@shared
@pass_given
def requeue(
    given: Given,
    ids: tuple[str, ...],
    topic: str | None,
    tag: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Schedule dead tasks again, due now and with all their attempts: those with the IDs; exit 1 unless all of them
    were scheduled. Or all that match; they are counted, and you are asked, before the first is scheduled.
    """
    many = BulkCommand(given, "requeue", Filter(topic, tag=tag), everything, dry_run, yes)
    if many.check(ids):
        return many.run()
    with opened(given) as engine:
        return told(given, {id: engine.requeue(id) for id in ids})


def told(given: Given, outcomes: dict[str, Outcome]) -> int:
    """Prints the outcome of each task, and returns the exit code."""
    for id, outcome in outcomes.items():
        if given.json:
            tell({"id": id, "outcome": outcome})
        else:
            say(f"{outcome} {id}" if len(outcomes) > 1 else str(outcome))
    return 0 if all(outcomes.values()) else 1
