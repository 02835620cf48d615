"""forward: the command that gives a topic a route to a Redis list."""

from __future__ import annotations

from typing import Literal

import click

from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import say, tell
from shardq.cli.session import opened


@click.command(
    short_help="Send a topic's payloads to a Redis list.",
    epilog="""\b
example:
  shardq forward emails --to celery
  shardq forward emails --off
  shardq forward '' --to inbox --left      (the default topic)""",
)
@click.argument("topic")
@click.option("--to", metavar="LIST", help="The name of a Redis list.")
@click.option("--left", is_flag=True, help="Put payloads on the list with LPUSH instead of RPUSH.")
@click.option("--off", is_flag=True, help="Forward it no longer.")
@shared
@pass_given
def forward(given: Given, topic: str, to: str | None, left: bool, off: bool) -> None:
    """Send the payloads of TOPIC, when they are due, to a Redis list that other consumers read.

    Workers get no task of TOPIC meanwhile. A rate set with `shardq limit` holds for it; a topic with a limit of
    --concurrency is refused.
    """
    if off == bool(to):
        raise click.UsageError("give the list, as --to LIST, or --off to stop forwarding")
    if left and off:
        raise click.UsageError("--left goes with --to")
    side: Literal["left", "right"] = "left" if left else "right"
    with opened(given, create=True) as engine:
        engine.forward(topic, to=to, side=side)
    if given.json:
        tell({"topic": topic, "to": to, "side": side if to else None})
    elif to:
        say(f"topic {topic!r} now goes to the list {to!r} by {'LPUSH' if left else 'RPUSH'}")
    else:
        say(f"topic {topic!r} is no longer forwarded")
