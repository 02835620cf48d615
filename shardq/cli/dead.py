"""dead and requeue: commands on dead tasks, which ran out of attempts or were buried."""

from __future__ import annotations

import sys
from itertools import islice

import click
import msgspec

from shardq.cli.by_id import told
from shardq.cli.numbers import Whole
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, payload_shown, say, tell
from shardq.cli.session import opened
from shardq.cli.table import Column, Table
from shardq.model.task import DeadTask

TABLE = 100
"""Rows of the table without --limit: people read it. With --json, for programs, there is no such bound."""

REASON = 120
"""Characters of a reason that are shown: it is a program's message, of any length."""


@click.command(
    short_help="List the dead tasks.",
    epilog="""\b
example:
  shardq dead
  shardq dead --topic email --limit 20
  shardq dead --json | jq -r .reason | sort | uniq -c""",
)
@click.option("--topic", metavar="TOPIC", help="Only of this topic; '' is the default topic.")
@click.option("--limit", type=Whole(1), metavar="N", help=f"At most so many. Default: {TABLE} in a table, all as JSON.")
@shared
@pass_given
def dead(given: Given, topic: str | None, limit: int | None) -> None:
    """List the dead tasks and the reason of each, shard by shard; in a shard, those that died first come first."""
    with opened(given) as engine:
        found = engine.dead(topic)
        if given.json:
            for task in islice(found, limit):
                tell(_shown(task))
            return
        limit = limit or TABLE
        tasks = list(islice(found, limit + 1))
    if not tasks:
        say("none")
        return
    Table(
        Column[DeadTask]("id", lambda task: task.id, text=True),
        Column("died (UTC)", lambda task: f"{task.died:%m-%d %H:%M:%S}", rank=1, text=True),
        Column("attempts", lambda task: str(task.failures + task.lapses), rank=2),
        Column("reason", lambda task: _last_line(task.reason), text=True),
    ).print(tasks[:limit])
    if len(tasks) > limit:
        sys.stdout.flush()
        complain(f"there are more than these {limit:,}: --limit N shows more, --json all of them")


def _shown(task: DeadTask) -> dict[str, object]:
    fields: dict[str, object] = msgspec.to_builtins(msgspec.structs.replace(task, payload=None))
    del fields["payload"]
    return fields | payload_shown(task.payload)


def _last_line(reason: str) -> str:
    """The last line of a traceback, which is the error, without characters that steer a terminal."""
    line = reason.strip().rpartition("\n")[2]
    return "".join(char if char.isprintable() else " " for char in line[:REASON])


@click.command(
    short_help="Schedule dead tasks again.",
    epilog="""\b
example:
  shardq requeue email/welcome-7
  shardq requeue --all --topic email""",
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Schedule all that are dead now.")
@click.option("--topic", metavar="TOPIC", help="With --all: only of this topic; '' is the default topic.")
@shared
@pass_given
def requeue(given: Given, ids: tuple[str, ...], every: bool, topic: str | None) -> int:
    """Schedule dead tasks again, due now and with all their attempts; exit 1 unless all the IDs were scheduled."""
    if every == bool(ids):
        raise click.UsageError("give the ids of dead tasks, or --all for all of them")
    if topic is not None and not every:
        raise click.UsageError("--topic goes with --all: an id names its topic")
    with opened(given) as engine:
        if not every:
            return told(given, {id: engine.requeue(id) for id in ids})
        count = engine.requeue_all(topic)
    if given.json:
        tell({"requeued": count, "topic": topic})
    else:
        say(f"{count:,} requeued")
    return 0
