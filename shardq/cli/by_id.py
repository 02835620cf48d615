"""get, cancel and reschedule: commands on tasks by id."""

from __future__ import annotations

import datetime as dt
from typing import Any

import click
import msgspec

from shardq.cli.durations import due_options
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import payload_shown, say, tell
from shardq.cli.session import opened
from shardq.model.task import Outcome, TaskInfo


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
    short_help="Remove tasks that are not leased.",
    epilog="""\b
example:
  shardq cancel email/welcome-7
  shardq cancel AZr3kQ0xYp2LmA AZr3kQ0xYp2LmB""",
)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@shared
@pass_given
def cancel(given: Given, ids: tuple[str, ...]) -> int:
    """Remove tasks that no worker has leased; exit 1 unless all of them were removed."""
    with opened(given) as engine:
        return told(given, {id: engine.cancel(id) for id in ids})


@click.command(
    short_help="Give a task another due time.",
    epilog="""\b
example:
  shardq reschedule email/welcome-7 --delay 2h
  shardq reschedule email/welcome-7 --at 2030-01-31T12:00:00Z""",
)
@click.argument("id")
@due_options
@shared
@pass_given
def reschedule(given: Given, id: str, delay: float | None, at: float | dt.datetime | None) -> int:
    """Give the task ID another due time; exit 1 when it can't have one."""
    if (delay is None) == (at is None):
        raise click.UsageError("give the new due time, as --delay or as --at")
    with opened(given) as engine:
        return told(given, {id: engine.reschedule(id, delay=delay, at=at)})


def told(given: Given, outcomes: dict[str, Outcome]) -> int:
    """Prints the outcome of each task, and returns the exit code. Also for ``requeue``."""
    for id, outcome in outcomes.items():
        if given.json:
            tell({"id": id, "outcome": outcome})
        else:
            say(f"{outcome} {id}" if len(outcomes) > 1 else str(outcome))
    return 0 if all(outcomes.values()) else 1
