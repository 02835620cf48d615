"""stats: what is where."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import msgspec

from shardq.cli.durations import read_by, seconds
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell, unseen
from shardq.cli.session import opened
from shardq.engine import Stats

OVERDUE_S = 2.0
"""Longer than any dispatcher takes to take over from another that left."""


@click.command(
    short_help="How many tasks are where.",
    epilog="""\b
example:
  shardq stats
  shardq stats --watch 1
  shardq stats --json | jq .scheduled""",
)
@click.option("--watch", metavar="TIME", callback=read_by(seconds), help="Look again every so often, until Ctrl-C.")
@shared
@pass_given
def stats(given: Given, watch: float | None) -> None:
    """Show how many tasks each shard has in each state, and in total."""
    if watch is not None and watch < 0.1:
        raise click.UsageError("--watch looks every 0.1 s at most: each look asks every shard")
    with opened(given) as engine:
        if watch is None:
            _show(given, engine.stats())
        elif given.json or not sys.stdout.isatty():
            while True:
                _show(given, engine.stats())
                time.sleep(watch)
        else:
            from shardq.cli import board

            seen = engine.stats()
            shards = board.Board(*_columns(seen))
            with board.LiveBoard(shards) as live:
                while True:
                    shards.look(seen, time.monotonic())
                    live.show(seen, below=f"{time.strftime('%X')}  {unseen(seen) or _overdue(seen) or _where(seen)}")
                    time.sleep(watch)
                    seen = engine.stats()


def _columns(seen: Stats) -> tuple[Any, ...]:
    from shardq.cli import board

    nodes = {shard.node for shard in seen.shards}
    columns = (*board.COUNTS, board.DEAD, board.DISPATCHED, board.HEAD)
    return (*columns, board.NODE) if len(nodes) > 1 else columns


def _where(seen: Stats) -> str:
    nodes = sorted({shard.node for shard in seen.shards})
    return f"{seen.name}: {len(seen.shards)} shards on {', '.join(nodes)}, {seen.server}"


def _show(given: Given, seen: Stats) -> None:
    if given.json:
        tell(shown(seen))
        return
    from shardq.cli import board

    board.print_table(board.Board(*_columns(seen), rates=False), seen)
    say(_where(seen) + _unconfirmed(seen))
    for trouble in (unseen(seen), _overdue(seen)):
        if trouble:
            complain(trouble)


def _unconfirmed(seen: Stats) -> str:
    """What a failover could lose now; nothing where there are no replicas."""
    behind = [each.unconfirmed for each in seen.replication.values() if each.unconfirmed is not None]
    return f", {sum(behind):,} bytes not confirmed by a replica" if behind else ""


def _overdue(seen: Stats) -> str:
    """A hint when nobody seems to dispatch."""
    oldest = max((shard.head_age for shard in seen.shards if shard.head_age is not None), default=0.0)
    if oldest < OVERDUE_S:
        return ""
    return f"a task has been due for {oldest:,.0f} s: does a dispatcher run? (shardq run)"


def shown(seen: Stats) -> dict[str, Any]:
    """As JSON: what this process's pollers would know is left out, it has none."""
    fields: dict[str, Any] = msgspec.to_builtins(seen)
    for own in ("lateness", "dispatchers", "healthy", "connections"):
        del fields[own]
    for shard in fields["shards"]:
        for own in ("lateness", "poller", "poller_error"):
            del shard[own]
    return fields
