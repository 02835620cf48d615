"""stats: what is where."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
import msgspec

from shardq.cli.durations import read_by, seconds
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import opened
from shardq.engine import Stats
from shardq.engine.stats import OVERDUE_S


@click.command(
    short_help="How many tasks are where, and if all is well.",
    epilog="""\b
example:
  shardq stats
  shardq stats --watch 1
  shardq stats --json | jq .scheduled
  shardq stats > /dev/null || echo "not well"
\b
exit codes:
  0  all is well
  1  not: a shard could not be seen, or has tasks that nobody has moved
     for OVERDUE s since they were due (those of paused, limited and
     forwarded topics are moved, too, and held after that), or a
     server evicts keys (maxmemory-policy)""".replace("OVERDUE", f"{OVERDUE_S:g}"),
)
@click.option("--watch", metavar="TIME", callback=read_by(seconds), help="Look again every so often, until Ctrl-C.")
@shared
@pass_given
def stats(given: Given, watch: float | None) -> int:
    """Show how many tasks each shard has in each state, and in total; exit 1 when something is wrong."""
    if watch is not None and watch < 0.1:
        raise click.UsageError("--watch looks every 0.1 s at most: each look asks every shard")
    with opened(given) as engine:
        if watch is None:
            seen = engine.stats()
            _show(given, seen)
            return 0 if seen.healthy else 1
        if given.json or not sys.stdout.isatty():
            while True:
                _show(given, engine.stats())
                time.sleep(watch)
        from shardq.cli import shard_table

        seen = engine.stats()
        shards = shard_table.ShardTable(*_columns(seen))
        with shard_table.LiveShardTable(shards) as live:
            while True:
                shards.look(seen, time.monotonic())
                live.show(seen, below=f"{time.strftime('%X')}  {'; '.join(seen.problems) or _where(seen)}")
                time.sleep(watch)
                seen = engine.stats()


def _columns(seen: Stats) -> tuple[Any, ...]:
    from shardq.cli import shard_table

    nodes = {shard.node for shard in seen.shards}
    columns = (*shard_table.COUNTS, shard_table.DEAD, shard_table.DISPATCHED, shard_table.HEAD)
    return (*columns, shard_table.NODE) if len(nodes) > 1 else columns


def _where(seen: Stats) -> str:
    nodes = sorted({shard.node for shard in seen.shards})
    return f"{seen.name}: {len(seen.shards)} shards on {', '.join(nodes)}, {seen.server}"


def _show(given: Given, seen: Stats) -> None:
    if given.json:
        tell(shown(seen))
        return
    from shardq.cli import shard_table

    shard_table.print_table(shard_table.ShardTable(*_columns(seen), rates=False), seen)
    say(_where(seen) + _unconfirmed(seen))
    for said in (*seen.warnings, *seen.problems):
        complain(said)


def _unconfirmed(seen: Stats) -> str:
    """The writes that a failover could lose now; nothing where there are no replicas."""
    behind = [each.unconfirmed for each in seen.replication.values() if each.unconfirmed is not None]
    return f", {sum(behind):,} bytes not confirmed by a replica" if behind else ""


def shown(seen: Stats) -> dict[str, Any]:
    """The statistics as JSON, without what only pollers know: this process has none."""
    fields: dict[str, Any] = msgspec.to_builtins(seen)
    for own in ("lateness", "dispatchers", "connections", "failing_routes"):
        del fields[own]
    for shard in fields["shards"]:
        for own in ("lateness", "poller", "poller_error"):
            del shard[own]
    return fields
