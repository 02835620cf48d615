"""fleet: the command that shows the processes of an engine, and what each of them does."""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, lateness_shown, milliseconds, say, tell
from shardq.cli.session import looking
from shardq.cli.table import Column, Table
from shardq.fleet import Lateness, Member
from shardq.model.ids import shown_topic

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
  since     how long it runs
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
    elif members:
        _table(sinks=any(member.sinks for member in members), longest=any(member.longest for member in members)).print(
            members
        )
    else:
        say("none")
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


def _table(*, sinks: bool, longest: bool) -> Table[Member]:
    return Table(
        Column("process", lambda member: f"{member.host}:{member.pid}" if member.host else member.name, text=True),
        Column("is", lambda member: member.kind, rank=1),
        Column("serves", _serves, rank=2, text=True),
        Column("since", lambda member: _span(time.time() - member.since) if member.since else "?", rank=5),
        Column("seen", lambda member: _span(member.seen_s), rank=6),
        Column("running", _running, rank=7),
        *((Column("longest", _longest, rank=5, text=True),) if longest else ()),
        Column("done", lambda member: f"{member.dispatched + member.handled:,}", rank=3),
        Column("failed", lambda member: f"{member.failed:,}", rank=4),
        Column("p99 ms", lambda member: milliseconds(_lateness(member).p99_ms), rank=4),
        *((Column("sinks", _sinks, rank=3, text=True),) if sinks else ()),
        Column("last error", lambda member: member.last_error or "-", rank=8, text=True),
    )


def _serves(member: Member) -> str:
    if member.kind == "worker":
        return ", ".join(shown_topic(topic) for topic in member.topics) or "?"
    runs: list[list[int]] = []
    for shard in member.shards:
        if runs and runs[-1][1] == shard - 1:
            runs[-1][1] = shard
        else:
            runs.append([shard, shard])
    return ", ".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs) or "no shards"


def _sinks(member: Member) -> str:
    return ", ".join(
        f"{shown_topic(sink.topic)} {sink.sent:,}" + (f" ({sink.circuit})" if sink.circuit != "closed" else "")
        for sink in member.sinks
    )


def _running(member: Member) -> str:
    return f"{member.running:,} of {member.concurrency:,}" if member.kind == "worker" else "-"


def _longest(member: Member) -> str:
    return f"{member.longest[0].id} for {_span(member.longest[0].seconds)}" if member.longest else "-"


def _lateness(member: Member) -> Lateness:
    return Lateness.total([*member.dispatch_lateness.values(), *member.pickup_lateness.values()])


def _span(seconds: float) -> str:
    """A length of time in the largest unit of which it is two or more.

    >>> _span(3.2), _span(600), _span(90_000)
    ('3 s', '10 min', '25 h')
    """
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{max(0.0, seconds):,.0f} s"
