"""fleet: the command that shows the processes of an engine, and what each of them does."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, lateness_shown, tell
from shardq.cli.session import looking
from shardq.cli.table import print_view
from shardq.core.fleet import Member
from shardq.engine import tables

NONE = "none: no dispatcher runs (`shardq run` starts one), and no worker"


@click.command(
    short_help="The processes that serve and work.",
    epilog="""\b
example:
  shardq fleet
  shardq fleet --json | jq -r 'select(.kind == "worker") | .host'
\b
columns:
  serves    the shards of a dispatcher, the topics of a worker
  up        how long it runs
  seen      since its last heartbeat; a dispatcher sends one in 1 s, or in 5 s
            where it is alone, a worker in 10 s
  running   handlers now, of as many as it runs at once
  longest   the task whose handler has been running longest, and since when,
            if that is ten seconds or more
  done      tasks moved by a dispatcher, tasks handled by a worker
  failed    attempts that failed
  p99 ms    a dispatcher's: how late tasks were moved; a worker's: how long
            claimed ones waited for their handler
  sinks     where topics go to URLs or functions: the tasks that a dispatcher
            has sent of each, and its circuit if that is not closed""",
)
@shared
@pass_given
def fleet(given: Given) -> None:
    """Show each process of the engine that lives: dispatchers, which serve shards, and workers, which run handlers. A
    process that does both is in two lines. One that was killed goes after 3 seconds, the only dispatcher after 8, a
    worker after 30.
    """
    with looking(given) as engine:
        members = engine.fleet()
    if given.json:
        for member in members:
            tell(shown(member))
    else:
        print_view(tables.fleet(members))
    if not members:
        complain(NONE)


def shown(member: Member) -> dict[str, Any]:
    """A member as JSON: histograms as their quantiles."""
    fields: dict[str, Any] = msgspec.to_builtins(member)
    for name, by_topic in (
        ("dispatch_lateness", member.dispatch_lateness),
        ("pickup_lateness", member.pickup_lateness),
    ):
        fields[name] = {topic: lateness_shown(lateness) for topic, lateness in by_topic.items()}
    return fields
