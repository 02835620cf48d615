"""forward: the command that gives a topic a route: to a list, a stream, or a URL."""

from __future__ import annotations

from typing import Literal

import click

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import say, tell
from shardq.cli.parsers import Whole
from shardq.cli.session import opened
from shardq.core.model.ids import quoted_topic
from shardq.engine import tables
from shardq.engine.arguments import MAX_LENGTH, route_of


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
@pass_given
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
