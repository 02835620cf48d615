"""topics, pause, resume, limit and purge: commands on whole topics."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, in_options, say, tell
from shardq.cli.parsers import Decimal, Whole
from shardq.cli.session import looking, opened
from shardq.cli.table import print_view
from shardq.core.model.checks import check_topic
from shardq.core.model.ids import quoted_topic
from shardq.engine import Engine, Stats, tables


@click.command(
    short_help="The topics, and what is set for each.",
    epilog="""\b
example:
  shardq topics
  shardq topics --json | jq -r 'select(.oldest_ready > 60).topic'""",
)
@shared
@pass_given
def topics(given: Given) -> None:
    """Show each topic: its tasks by state, how long the oldest ready one has waited at least, how many were dispatched
    since the shards were opened, and what was set for it with pause, limit and forward.

    A number with ~ is an estimate, and the one with ± by how much it may be off. How long a task has been ready is
    known as far as anybody has looked: 0 at the first look.
    """
    with looking(given) as engine:
        health = engine.health()
    seen = health.stats
    if given.json:
        for topic, fields in shown_topics(seen).items():
            tell({"topic": topic} | fields)
    else:
        print_view(tables.topics(health))
    for reason in health.reasons:
        complain(in_options(reason))


def shown_topics(seen: Stats) -> dict[str, dict[str, Any]]:
    """The topics as JSON. Where no shard could be read, the counts are null."""
    topics: dict[str, dict[str, Any]] = msgspec.to_builtins(seen.topics)
    if seen.is_blind:
        for fields in topics.values():
            fields |= dict.fromkeys(("scheduled", "ready", "leased", "dead", "dispatched", "died"))
    return topics


@click.command(
    short_help="Hold a topic's tasks back from workers.",
    epilog="""\b
example:
  shardq pause email
  shardq pause ''      (the default topic)""",
)
@click.argument("topic")
@shared
@pass_given
def pause(given: Given, topic: str) -> None:
    """Give no more tasks of TOPIC to workers, or to the list it is forwarded to, over the whole fleet. Tasks that run
    go on, and others still become ready. `shardq topics` shows what is paused.
    """
    with opened(given) as engine:
        engine.pause(topic)
    if given.json:
        tell({"topic": topic, "paused": True})
    else:
        say(f"topic {quoted_topic(topic)} is paused")


@click.command(
    short_help="Give a paused topic's tasks to workers again.",
    epilog="""\b
example:
  shardq resume email""",
)
@click.argument("topic")
@shared
@pass_given
def resume(given: Given, topic: str) -> None:
    """Give tasks of a paused TOPIC to workers again, over the whole fleet."""
    with opened(given) as engine:
        engine.resume(topic)
    if given.json:
        tell({"topic": topic, "paused": False})
    else:
        say(f"topic {quoted_topic(topic)} is no longer paused")


@click.command(
    short_help="Limit a topic's rate and concurrency.",
    epilog="""\b
example:
  shardq limit invoice --rate 100 --concurrency 20
  shardq limit invoice --rate 0.5      (one every two seconds, any number at once)
  shardq limit invoice --off""",
)
@click.argument("topic")
@click.option("--rate", type=Decimal(0, min_open=True), metavar="R", help="Tasks a second, at most.")
@click.option("--concurrency", type=Whole(1), metavar="N", help="Tasks leased at once, at most.")
@click.option("--off", is_flag=True, help="End the limits.")
@shared
@pass_given
def limit(given: Given, topic: str, rate: float | None, concurrency: int | None, off: bool) -> None:
    """Limit TOPIC over all shards and workers of the fleet. The limits it had before are replaced at once, also for
    workers that wait under them. A place under --concurrency is free when its task is settled, by whichever consumer,
    or two seconds after its lease. Limits hold for a forwarded topic, too; but --concurrency is refused with a list or
    a stream on the same server, because a task that has left can't be counted.
    """
    if off == (rate is not None or concurrency is not None):
        raise click.UsageError("give --rate, --concurrency or both, or --off to end the limits")
    with opened(given) as engine:
        engine.limit(topic, rate=rate, concurrency=concurrency)
    if given.json:
        tell({"topic": topic, "rate": rate, "concurrency": concurrency})
    elif off:
        say(f"topic {quoted_topic(topic)} is no longer limited")
    else:
        often = "any number a second" if rate is None else f"{rate:,g} a second"
        at_once = "any number at once" if concurrency is None else f"{concurrency:,} at once"
        say(f"topic {quoted_topic(topic)} is limited to {often}, {at_once}")


@click.command(
    short_help="Remove all tasks of a topic, or all.",
    epilog="""\b
example:
  shardq purge --topic email
  shardq purge --everything --yes""",
)
@click.option("--topic", metavar="TOPIC", help="Remove the tasks of this topic; '' is the default topic.")
@click.option("--everything", is_flag=True, help="Remove the tasks of all topics.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared
@pass_given
def purge(given: Given, topic: str | None, everything: bool, yes: bool) -> int:
    """Remove the tasks that are scheduled, ready or dead. Leased ones finish."""
    if everything == (topic is not None):
        raise click.UsageError("give --topic TOPIC, or --everything for all topics")
    if topic is not None:
        check_topic(topic)
    if not yes and not (sys.stdin and sys.stdin.isatty()):
        raise click.UsageError("there is no terminal to ask for confirmation on: add --yes")
    with opened(given) as engine:
        if not yes and not click.confirm(_question(engine, topic), err=True):
            say("nothing removed")
            return 1
        removed = engine.purge(topic, everything=everything)
    if given.json:
        tell({"removed": removed, "topic": topic})
    else:
        say(f"{removed:,} removed")
    return 0


def _question(engine: Engine, topic: str | None) -> str:
    options = engine.options
    where = f"of {engine.name!r} at {options.safe_url}"
    if topic is not None:
        return f"Remove all tasks of the topic {quoted_topic(topic)} {where}?"
    seen = engine.stats()
    return f"Remove all tasks {where}: {seen.scheduled:,} scheduled, {seen.ready:,} ready, {seen.dead:,} dead?"
