"""stats: the command that shows how many tasks are in which state, and whether all is well."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import msgspec

from shardq.cli.durations import read_by, seconds
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, counted, say, tell
from shardq.cli.session import opened
from shardq.cli.shard_view import COUNTS, DEAD, DISPATCHED, FIRST_DUE, NODE, ShardView, print_shards
from shardq.cli.spool import opened_spool
from shardq.cli.spool import shown as shown_spool
from shardq.cli.words import in_options
from shardq.engine import Engine, Stats
from shardq.engine.stats import OVERDUE_S
from shardq.spool.stats import problems as problems_of_spool


@click.command(
    short_help="How many tasks are in which state, and if all is well.",
    epilog="""\b
example:
  shardq stats
  shardq stats --watch 1
  shardq stats --json | jq .scheduled
  shardq stats > /dev/null || echo "not well"
  shardq stats --spool /var/lib/shop/orders.spool
\b
exit codes:
  0  all is well
  1  something is wrong: a shard could not be seen, or has scheduled tasks
     that are overdue by more than OVERDUE s, or a server evicts keys
     (maxmemory-policy); ready tasks, as of paused topics, do not count""".replace("OVERDUE", f"{OVERDUE_S:g}"),
)
@click.option("--watch", metavar="TIME", callback=read_by(seconds), help="Look again every so often, until Ctrl-C.")
@click.option(
    "--spool",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also show what waits in this file of a producer's spool=.",
)
@shared
@pass_given
def stats(given: Given, watch: float | None, spool: Path | None) -> int:
    """Show how many tasks each shard has in each state, and in total; exit 1 when something is wrong."""
    if watch is not None and watch < 0.1:
        raise click.UsageError("--watch looks every 0.1 s at most: each look asks every shard")
    with opened(given) as engine, ExitStack() as stack:
        seen = _seen(engine, spool)
        show = _shower(given, seen, stack, live=watch is not None and sys.stdout.isatty())
        while True:
            show(seen)
            if watch is None:
                return 0 if seen.healthy else 1
            time.sleep(watch)
            seen = _seen(engine, spool)


def _seen(engine: Engine, spool: Path | None) -> Stats:
    seen = engine.stats()
    if spool is None:
        return seen
    with opened_spool(spool) as file:
        gauge = file.stats()
    problems = (*seen.problems, *problems_of_spool(gauge))
    return msgspec.structs.replace(seen, spool=gauge, problems=problems, healthy=not problems)


def _shower(given: Given, first: Stats, stack: ExitStack, *, live: bool) -> Callable[[Stats], None]:
    if given.json:
        return lambda seen: tell(shown(seen))
    nodes = {shard.node for shard in first.shards}
    columns = (*COUNTS, DEAD, DISPATCHED, FIRST_DUE, *((NODE,) if len(nodes) > 1 else ()))
    if live:
        view = stack.enter_context(ShardView(*columns))
        return lambda seen: view.show(seen, f"{time.strftime('%X')}  {'; '.join(seen.problems) or _where(seen)}")

    def once(seen: Stats) -> None:
        print_shards(seen, *columns)
        say(_where(seen) + _unconfirmed(seen))
        if seen.spool is not None:
            say(f"spool {seen.spool.path}: {shown_spool(seen.spool)}")
        for said in (*seen.warnings, *seen.problems):
            complain(in_options(said))

    return once


def _where(seen: Stats) -> str:
    nodes = sorted({shard.node for shard in seen.shards})
    return f"{seen.name}: {len(seen.shards)} shards on {', '.join(nodes)}, {seen.server}{_recurring(seen)}"


def _recurring(seen: Stats) -> str:
    """The number of schedules, if there are any."""
    if seen.schedules is None or not seen.schedules.count:
        return ""
    paused = f" ({seen.schedules.paused:,} paused)" if seen.schedules.paused else ""
    return f", {counted(seen.schedules.count, 'schedule')}{paused}"


def _unconfirmed(seen: Stats) -> str:
    """The writes that a failover could lose now; empty without replicas."""
    behind = [each.unconfirmed for each in seen.replication.values() if each.unconfirmed is not None]
    return f", {sum(behind):,} bytes not confirmed by a replica" if behind else ""


def shown(seen: Stats) -> dict[str, Any]:
    """The stats as JSON, without the fields that only a process with pollers or relays can fill: this one has none."""
    fields: dict[str, Any] = msgspec.to_builtins(seen)
    for own in ("lateness", "dispatchers", "connections", "failing_routes", "relays"):
        del fields[own]
    if seen.schedules is not None:
        del fields["schedules"]["pushed"]
    for shard in fields["shards"]:
        for own in ("lateness", "poller", "poller_error"):
            del shard[own]
    return fields
