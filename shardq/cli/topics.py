"""topics, pause, resume, limit, forward and purge: commands on whole topics."""

from __future__ import annotations

import sys
from typing import Any, Literal

import click
import msgspec

from shardq.cli.options import Given, shared
from shardq.cli.output import complain, in_options, say, tell
from shardq.cli.parsers import Whole, rate_option
from shardq.cli.session import looking, opened
from shardq.cli.table import print_view
from shardq.core.model.checks import check_topic
from shardq.core.model.ids import quoted_topic
from shardq.engine import Engine, Stats, tables
from shardq.engine.base import Inside
from shardq.engine.options import MAX_LENGTH, route_of


@click.command(
    short_help="The topics, and what is set for each.",
    epilog="""\b
example:
  shardq topics
  shardq topics --json | jq -r 'select(.oldest_ready > 60).topic'""",
)
@shared
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
@rate_option("The most tasks, in any time: 100, 0.5/s, 50k/s, 3M/day. Without a unit they are for a second.")
@click.option("--concurrency", type=Whole(1), metavar="N", help="Tasks leased at once, at most.")
@click.option("--off", is_flag=True, help="End the limits.")
@shared
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
    options = Inside(engine).options
    where = f"of {engine.name!r} at {options.safe_url}"
    if topic is not None:
        return f"Remove all tasks of the topic {quoted_topic(topic)} {where}?"
    seen = engine.stats()
    return f"Remove all tasks {where}: {seen.scheduled:,} scheduled, {seen.ready:,} ready, {seen.dead:,} dead?"


@click.command(
    short_help="Send a topic's payloads to a list, a stream or a URL.",
    epilog="""\b
example:
  shardq forward emails --to celery
  shardq forward emails --off
  shardq forward '' --to inbox --left      (the default topic)
  shardq forward events --to stream:events --maxlen 100000
  shardq forward mail --to redis://10.0.0.7:6379/0#mail
  shardq forward hooks --to 'https://${HOOK_TOKEN}@shop.example/hooks'
\b
where:
  NAME                     a list on the engine's own server
  stream:NAME              a stream there
  redis://HOST:PORT/DB#NAME, …#stream:NAME
                           another Redis: also rediss, unix, redis+cluster,
                           rediss+cluster, redis+sentinel
  https://HOST/PATH        a POST for each task; TOKEN@HOST for a bearer token
  amqp://USER:PASSWORD@HOST/VHOST#EXCHANGE/KEY, …#/QUEUE
                           RabbitMQ (pip install 'shardq[amqp]'); amqps
  nats://HOST:4222#SUBJECT NATS JetStream (pip install 'shardq[nats]')
  SCHEME://…               what an installed package brings (shardq.sinks)
\b
options after the ? (https: after a #), as in amqps://…?ca=FILE#/QUEUE:
  timeout=SECONDS          how long it may be silent; 10, for Redis 3
  ca=FILE cert=FILE key=FILE check_hostname=no
                           of rediss, https, amqps and nats+tls
\b
and of http and https, as in 'https://HOST/PATH#method=PUT&connections=32':
  header.NAME=VALUE        header.Authorization=Bearer+${TOKEN}
  method=POST|PUT|PATCH    connections=8, requests at a time, up to 64
  max_attempts=N           backoff=FIRST,LONGEST in seconds
  sign=${SECRET}           a signature of Standard Webhooks (whsec_…)
\b
The URL is stored in Redis. ${NAME} in it stands for a variable of the
environment of the processes that forward (`shardq run`): use it for
passwords. Commands and logs show no password.""",
)
@click.argument("topic")
@click.option("--to", metavar="WHERE", help="A list, stream:NAME, or a URL.")
@click.option("--left", is_flag=True, help="Put payloads on a list with LPUSH instead of RPUSH.")
@click.option(
    "--maxlen", type=Whole(1, MAX_LENGTH), metavar="N", help="Keep about N entries of a stream, and trim older ones."
)
@click.option("--off", is_flag=True, help="Forward it no longer.")
@shared
def forward(given: Given, topic: str, to: str | None, left: bool, maxlen: int | None, off: bool) -> None:
    """Send the payloads of TOPIC, when they are due, to a list, a stream, another Redis, a broker or an HTTP endpoint.
    Every `shardq run` does it; `shardq stats` shows how it goes.

    Workers get no task of TOPIC meanwhile. Limits and pauses hold for it; a topic with a limit of --concurrency is
    refused with a list or a stream on the same server.
    """
    if off == bool(to):
        raise click.UsageError("give the list, stream or URL, as --to WHERE, or --off to stop forwarding")
    if left and off:
        raise click.UsageError("--left goes with --to")
    if maxlen is not None and off:
        raise click.UsageError("--maxlen goes with --to")
    side: Literal["left", "right"] = "left" if left else "right"
    route = route_of(topic, to, side, maxlen)
    with opened(given, create=True) as engine:
        engine.forward(topic, to=to, side=side, maxlen=maxlen)
    if given.json:
        tell({"topic": topic, "to": route.shown if route else None, "side": side if route else None, "maxlen": maxlen})
    elif route is not None:
        say(f"topic {quoted_topic(topic)} now goes to {tables.route(route)}")
    else:
        say(f"topic {quoted_topic(topic)} is no longer forwarded")
