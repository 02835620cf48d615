"""topics, pause, resume, limit, hold, forward and purge: commands on whole topics, and on a key of one."""

from __future__ import annotations

import datetime as dt
import difflib
import fnmatch
import sys
from typing import Any, Literal

import click
import msgspec

from shardq import Engine
from shardq.cli.options import INSTANT, RATE, TIME, Given, Whole, command, joined, shared
from shardq.cli.output import complain, in_options, say
from shardq.cli.session import looking, opened
from shardq.cli.table import show
from shardq.core.model.checks import check_topic, instant_ms, shown_instant
from shardq.core.model.ids import quoted_topic
from shardq.engine.around import MAX_LENGTH, MOST, MOST_OF_KEY, EngineAccess, forms, route_of, tables
from shardq.errors import ShardqError


@command("Show the topics, and what is set for each.")
@click.option("--match", metavar="PATTERN", help="Only topics whose names fit: 'mail-*', 'customer-?7'.")
@click.option(
    "--limit",
    type=Whole(1),
    default=tables.MOST_TOPICS,
    show_default=True,
    help="Show the topics with the most tasks, and the sum of the others as '*'.",
)
@shared
def topics(given: Given, match: str | None, limit: int) -> None:
    """Show each topic: its tasks by state, the least time that its oldest ready task has waited, how many were
    dispatched since the shards were opened, and if it is paused, limited or forwarded.

    A number with ~ is an estimate; the one with ± says by how much it may be off. How long a task has been ready is
    counted from the first look at it.

    example:
      shardq topics
      shardq topics --match 'customer-*' --limit 20
      shardq topics --json | jq -r 'select(.oldest_ready > 60).topic'
    """
    with looking(given) as engine:
        health = engine.health()
    if match is not None:
        fitting = {topic: each for topic, each in health.stats.topics.items() if fnmatch.fnmatchcase(topic, match)}
        health = msgspec.structs.replace(health, stats=msgspec.structs.replace(health.stats, topics=fitting))
    view = tables.topics(health, limit)
    show(given, view, lambda row: forms.topic(health.stats, *row))
    for reason in health.reasons:
        complain(in_options(reason))


@command("Show the largest keys of a topic, and what they wait for.")
@click.argument("topic")
@click.option("--limit", type=Whole(1, MOST), default=20, show_default=True, help="Show so many keys at most.")
@shared
def keys(given: Given, topic: str, limit: int) -> None:
    """Show the keys of TOPIC with the most tasks: how many are held (due, and waiting for their key), for how long
    the oldest of these has waited, and why: for other tasks of the key that are ready or leased, its rate, a retry,
    the end of a hold, or a resize that moves the key. Then when the next task of the key is given out, as far as that
    is known; and if it waits for a retry, why that task failed: of a webhook, what its endpoint answered. "2 over its
    limit" are ready or leased beyond a lowered --per-key.

    Of a topic with more than 300 keys in a shard a sample is looked at. It has each key with more than a 300th of
    the shard's waiting tasks.

    example:
      shardq keys webhook
      shardq keys webhook --limit 5
      shardq keys webhook --json | jq -r 'select(.why == "hold").key'
    """
    with looking(given) as engine:
        found = engine.keys(topic, limit=limit)
    show(given, tables.keys(found), lambda row: dict(msgspec.to_builtins(row)))
    if not found.is_whole:
        complain("note: a sample of the keys was looked at; there may be more of the smaller ones")


def _hint(engine: Engine, topic: str) -> None:
    """Says so if no task of the topic was ever pushed, as where its name is misspelt."""
    try:
        topics = engine.stats().topics
    except ShardqError:
        return
    used = [
        name
        for name, each in topics.items()
        if each.scheduled or each.held or each.ready or each.leased or each.dispatched
    ]
    if topic not in used:
        close = difflib.get_close_matches(topic, used, n=1)
        shown = (
            f"did you mean {quoted_topic(close[0])}?"
            if close
            else f"there are {', '.join(map(quoted_topic, used[:10]))}"
        )
        complain(f"note: topic {quoted_topic(topic)} has had no task yet" + (f"; {shown}" if used else ""))


_until = joined(
    click.option("--for", "delay", type=TIME, help="For this time from now: 90s, 10m, 1d."),
    click.option("--until", type=INSTANT, help="2030-01-31T12:00:00Z, or seconds since 1970."),
)


def _end(engine: Engine, delay: float | None, until: float | dt.datetime | None) -> dt.datetime | None:
    """The instant that --for or --until names, by the server's clock."""
    if delay is not None:
        until = engine.forecast("hour").now.timestamp() + delay
    return None if until is None else shown_instant(instant_ms(until, "the end"))


def _told(end: dt.datetime | None) -> str:
    return "" if end is None else f" until {tables.instant(end)} UTC"


@command("Hold a topic's tasks back from workers.")
@click.argument("topic")
@_until
@shared
def pause(given: Given, topic: str, delay: float | None, until: float | dt.datetime | None) -> None:
    """Stop giving tasks of TOPIC to workers, or to the list it is forwarded to, for all processes. Running tasks
    finish, and due tasks still become ready. `shardq topics` shows which topics are paused. `shardq hold` holds back
    one key of a topic.

    example:
      shardq pause email
      shardq pause email --for 10m
      shardq pause ''      (the default topic)
    """
    if delay is not None and until is not None:
        raise click.UsageError("give --for or --until, or none to pause it until `shardq resume`")
    with opened(given) as engine:
        end = _end(engine, delay, until)
        engine.pause(topic, until=end)
        _hint(engine, topic)
    fields = {"topic": topic, "paused": True} | ({} if end is None else {"until": end.isoformat()})
    given.answer(fields, f"topic {quoted_topic(topic)} is paused{_told(end)}")


@command("Give a paused topic's tasks to workers again.")
@click.argument("topic")
@shared
def resume(given: Given, topic: str) -> None:
    """Give tasks of a paused TOPIC to workers again, for all processes.

    example:
      shardq resume email
    """
    with opened(given) as engine:
        engine.resume(topic)
    given.answer({"topic": topic, "paused": False}, f"topic {quoted_topic(topic)} is no longer paused")


@command("Limit a topic's rate and concurrency.")
@click.argument("topic")
@click.option("--rate", type=RATE, help="At most this rate: 100, 0.5/s, 50k/s, 3M/day. Without a unit, a second.")
@click.option("--concurrency", type=Whole(1), help="Tasks leased at once, at most.")
@click.option("--per-key", type=Whole(1, MOST_OF_KEY), help="Tasks of one key ready or leased at once, at most.")
@click.option("--per-key-rate", type=RATE, help="With --per-key: each key gives out its tasks at this rate, at most.")
@click.option(
    "--on-failure",
    type=click.Choice(["wait", "skip"]),
    help="With --per-key 1: what a key does while a failed task waits for its retry. Default: wait.",
)
@click.option("--off", is_flag=True, help="End the limits.")
@shared
def limit(given: Given, topic: str, off: bool, **limits: Any) -> None:
    """Limit TOPIC over all shards and workers together. New limits replace the old ones at once, also for workers
    that wait under them. A place under --concurrency becomes free when its task is settled (done, retried or dead),
    by any consumer, or two seconds after its lease. Limits apply to a forwarded topic, too; but --concurrency
    is refused with a list or a stream on the same server, because a task that has left can't be counted.

    Tasks that were pushed with --key run one at a time for each key, in the order of their due times. --per-key
    allows more.

    example:
      shardq limit invoice --rate 100 --concurrency 20
      shardq limit webhook --per-key 20 --per-key-rate 5
      shardq limit account --per-key 1 --on-failure skip
      shardq limit invoice --rate 0.5      (one every two seconds, any number at once)
      shardq limit invoice --off
    """
    chosen = {name for name, value in limits.items() if value is not None}
    if off == bool(chosen):
        raise click.UsageError("give --rate, --concurrency or --per-key, or --off to end the limits")
    if chosen & {"per_key_rate", "on_failure"} and "per_key" not in chosen:
        raise click.UsageError("--per-key-rate and --on-failure go with --per-key")
    with opened(given) as engine:
        engine.limit(topic, **limits)
        if not off:
            _hint(engine, topic)
    rate, concurrency, per_key, per_key_rate = (
        limits[name] for name in ("rate", "concurrency", "per_key", "per_key_rate")
    )
    often = "any number a second" if rate is None else f"{rate:,g} a second"
    at_once = "any number at once" if concurrency is None else f"{concurrency:,} at once"
    of_key = "" if per_key is None else f"; of each key to {per_key:,} at once"
    of_key += "" if per_key_rate is None else f", {per_key_rate:,g} a second"
    now = "no longer limited" if off else f"limited to {often}, {at_once}{of_key}"
    given.answer({"topic": topic, **limits}, f"topic {quoted_topic(topic)} is {now}")


@command("Hold a key's tasks back from workers.")
@click.argument("topic")
@click.argument("key")
@_until
@click.option("--off", is_flag=True, help="Let the key go on.")
@shared
def hold(given: Given, topic: str, key: str, delay: float | None, until: float | dt.datetime | None, off: bool) -> None:
    """Give out no tasks of KEY in TOPIC until then, and let all other keys go on. Running tasks finish.

    example:
      shardq hold webhook customer-7 --for 10m
      shardq hold webhook customer-7 --until 2030-01-31T12:00:00Z
      shardq hold webhook customer-7 --off
    """
    if (delay is not None) + (until is not None) + off != 1:
        raise click.UsageError("give --for, --until, or --off to let the key go on")
    with opened(given) as engine:
        end = _end(engine, delay, until)
        engine.hold(topic, key=key, until=end)
        if not off:
            _hint(engine, topic)
    now = f"on hold{_told(end)}" if end is not None else "no longer on hold"
    given.answer(
        {"topic": topic, "key": key, "until": end and end.isoformat()},
        f"key {key!r} of the topic {quoted_topic(topic)} is {now}",
    )


@command("Remove all tasks of a topic, or all.")
@click.option("--topic", metavar="TOPIC", help="Remove the tasks of this topic; '' is the default topic.")
@click.option("--everything", is_flag=True, help="Remove the tasks of all topics.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@shared
def purge(given: Given, topic: str | None, everything: bool, yes: bool) -> int:
    """Remove the scheduled, ready and dead tasks. Leased ones finish.

    example:
      shardq purge --topic email
      shardq purge --everything --yes
    """
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
    given.answer({"removed": removed, "topic": topic}, f"{removed:,} removed")
    return 0


def _question(engine: Engine, topic: str | None) -> str:
    where = f"of {engine.name!r} at {EngineAccess(engine).options.safe_url}"
    if topic is not None:
        return f"Remove all tasks of the topic {quoted_topic(topic)} {where}?"
    seen = engine.stats()
    return (
        f"Remove all tasks {where}: {seen.scheduled + seen.held:,} scheduled, {seen.ready:,} ready, {seen.dead:,} dead?"
    )


@command("Send a topic's payloads to a list, a stream or a URL.")
@click.argument("topic")
@click.option("--to", metavar="WHERE", help="A list, stream:NAME, or a URL.")
@click.option("--left", is_flag=True, help="Put payloads on a list with LPUSH instead of RPUSH.")
@click.option("--maxlen", type=Whole(1, MAX_LENGTH), help="Keep about N entries of a stream, and trim older ones.")
@click.option("--off", is_flag=True, help="Forward it no longer.")
@shared
def forward(given: Given, topic: str, to: str | None, left: bool, maxlen: int | None, off: bool) -> None:
    """Send the payloads of TOPIC, when they are due, to a list, a stream, another Redis, a broker or an HTTP
    endpoint. Every `shardq run` does it; `shardq stats` shows how it goes.

    Meanwhile workers get no task of TOPIC. Limits and pauses still apply; a topic with a limit of --concurrency is
    refused with a list or a stream on the same server.

    example:
      shardq forward emails --to celery
      shardq forward emails --off
      shardq forward '' --to inbox --left      (the default topic)
      shardq forward events --to stream:events --maxlen 100000
      shardq forward mail --to redis://10.0.0.7:6379/0#mail
      shardq forward hooks --to 'https://${HOOK_TOKEN}@shop.example/hooks'

    where:
      NAME                     a list on the engine's own server
      stream:NAME              a stream there
      redis://HOST:PORT/DB#NAME, …#stream:NAME
                               another Redis: also rediss, unix, redis+cluster,
                               rediss+cluster, redis+sentinel, rediss+sentinel
      https://HOST/PATH        a POST for each task; TOKEN@HOST for a bearer token
      webhook://#sign.key=${MASTER}
                               a POST for each task, to the URL that it was pushed
                               with (push --webhook URL)
      amqp://USER:PASSWORD@HOST/VHOST#EXCHANGE/KEY, …#/QUEUE
                               RabbitMQ (pip install 'shardq[amqp]'); amqps
      nats://HOST:4222#SUBJECT NATS JetStream (pip install 'shardq[nats]')
      SCHEME://…               a sink of an installed package (shardq.sinks)

    options after the ? (https: after a #), as in amqps://…?ca=FILE#/QUEUE:
      timeout=SECONDS          how long the server may be silent; 10, for Redis 3
      ca=FILE cert=FILE key=FILE check_hostname=no
                               for rediss, https, amqps and nats+tls

    and for http and https, as in 'https://HOST/PATH#method=PUT&connections=32':
      header.NAME=VALUE        header.Authorization=Bearer+${TOKEN}
      method=POST|PUT|PATCH    connections=8, requests at a time, up to 64
      max_attempts=N           backoff=FIRST,LONGEST in seconds
      sign=${SECRET}           a signature of Standard Webhooks (whsec_…)

    and for webhook, as in 'webhook://#sign.key=${MASTER}&timeout=15':
      sign.key=${MASTER}       a signature for each endpoint, or sign=${SECRET}
      max_attempts=N           http=yes, also URLs without TLS

    The URL is stored in Redis. Use ${NAME} for a user, a password, or a value of
    header.NAME=, sign= or sign.key=: the processes that forward (`shardq run`) put
    $SHARDQ_SECRET_NAME, or the file NAME of --secrets, in its place. Commands and
    logs show no password.
    """
    if off == bool(to):
        raise click.UsageError("give the list, stream or URL, as --to WHERE, or --off to stop forwarding")
    if off and (left or maxlen is not None):
        raise click.UsageError(f"{'--left' if left else '--maxlen'} goes with --to")
    side: Literal["left", "right"] = "left" if left else "right"
    route = route_of(topic, to, side, maxlen)
    with opened(given, create=True) as engine:
        engine.forward(topic, to=to, side=side, maxlen=maxlen)
        if not off:
            _hint(engine, topic)
    now = "is no longer forwarded" if route is None else f"now goes to {tables.route(route)}"
    given.answer(
        {"topic": topic, "to": route.shown if route else None, "side": side if route else None, "maxlen": maxlen},
        f"topic {quoted_topic(topic)} {now}",
    )
