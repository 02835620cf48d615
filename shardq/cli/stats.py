"""stats: the command that shows how many tasks are in which state, and whether all is well. fleet: the command that
shows the processes of an engine, and what each of them does.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import click
import msgspec

from shardq import Engine, Health, Stats
from shardq.cli.config import settings_shown
from shardq.cli.far import shown as shown_far
from shardq.cli.forecast import print_timeline
from shardq.cli.health import exit_code, say_verdict
from shardq.cli.options import TIME, Given, command, shared
from shardq.cli.output import complain, in_options, say, tell
from shardq.cli.session import looking
from shardq.cli.spool import opened_spool
from shardq.cli.spool import shown as shown_spool
from shardq.cli.table import ShardView, print_shards, print_view, show
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.fleet.report import together
from shardq.core.layout.destinations import named
from shardq.core.model.ids import shown_topic
from shardq.engine.around import (
    COUNTS,
    DEAD,
    DISPATCHED,
    FIRST_DUE,
    NODE,
    ShardColumn,
    counted,
    forms,
    instant,
    largest,
    of_spool,
    per_second,
    reds,
    tables,
    unsaid,
    with_findings,
)
from shardq.features.listing.forecast import STEPS, Horizon


@command("Count tasks by state, and say if all is well.")
@click.option("--watch", type=TIME, help="Look again after this time, until Ctrl-C.")
@click.option("--totals", is_flag=True, help="Leave the single shards out.")
@click.option(
    "--history",
    metavar="hour|day|month",
    type=click.Choice([*STEPS]),
    help="Show the last hour by the minute, day by the hour or month by the day, and then what falls due.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also show the commands that wait in this file, a producer's spool=.",
)
@shared
def stats(given: Given, watch: float | None, totals: bool, history: Horizon | None, spool: Path | None) -> int:
    """Show whether all is well, and how many tasks each shard and each topic has in each state; exit 1 when
    something is wrong. The verdict is the one of `shardq health`, with one exception: if no dispatcher runs and no
    task is late, as with an engine that you only push to, that is only a warning.

    A number with ~ is an estimate. "oldest" is how long the oldest ready task of a topic has waited.

    example:
      shardq stats
      shardq stats --watch 1
      shardq stats --totals --json | jq .scheduled
      shardq stats --history day               (with what falls due next)
      shardq stats > /dev/null || echo "not well"
      shardq stats --spool /var/lib/shop/orders.spool

    exit codes:
      0  all is well; or no dispatcher runs, but no task is late yet
      1  something is wrong: the first lines say what; or it failed
      2  no shard could be seen
    """
    if watch is not None and watch < 0.1:
        raise click.UsageError("--watch looks every 0.1 s at most: each look asks every shard")
    if history is not None and (watch is not None or totals or spool is not None):
        raise click.UsageError("--history is shown by itself: without --watch, --totals and --spool")
    with looking(given) as engine, ExitStack() as stack:
        if history is not None:
            print_timeline(given, engine.history(history), engine.forecast(history), history)
            return 0
        view: ShardView | None = None
        while True:
            seen = _seen(engine, spool)
            if given.json:
                tell(forms.stats(seen, largest(seen.stats.topics, tables.MOST_TOPICS), totals=totals))
            elif watch is not None and sys.stdout.isatty():
                view = view or stack.enter_context(ShardView(*_columns(seen.stats)))
                said = seen.reasons or [warning for warning in seen.warnings if warning == NO_DISPATCHER]
                view.show(seen.stats, f"{time.strftime('%X')}  {'; '.join(said) or _where(seen.stats)}")
            else:
                _print(seen, totals=totals)
            if watch is None:
                return exit_code(seen)
            time.sleep(watch)


def _seen(engine: Engine, spool: Path | None) -> Health:
    """The verdict. Where no dispatcher runs and nothing else is red, that is a warning."""
    seen, gauge = engine.health(), None
    if [each.name for each in reds(seen.findings)] == ["no_dispatcher"]:
        first, *others = seen.findings
        warning = msgspec.structs.replace(first, severity="warning")
        seen = with_findings(msgspec.structs.replace(seen, findings=others), [warning])
    if spool is not None:
        with opened_spool(spool) as file:
            gauge = file.stats()
        seen = with_findings(seen, of_spool(gauge))
    sinks = together(sink for member in seen.fleet for sink in member.sinks)
    return msgspec.structs.replace(seen, stats=msgspec.structs.replace(seen.stats, sinks=sinks, spool=gauge))


def _columns(seen: Stats) -> tuple[ShardColumn, ...]:
    nodes = {shard.node for shard in seen.shards}
    return (*COUNTS, DEAD, DISPATCHED, FIRST_DUE, *((NODE,) if len(nodes) > 1 else ()))


def _print(health: Health, *, totals: bool) -> None:
    seen = health.stats
    say_verdict(health)
    say("")
    print_shards(msgspec.structs.replace(seen, shards=[]) if totals else seen, *_columns(seen))
    if seen.topics:
        say("")
        print_view(tables.topics(health, tables.MOST_TOPICS))
    for sink in seen.sinks:
        counts = f"{sink.sent:,} sent, {sink.failed:,} failed, {sink.retried:,} retried, {sink.buried:,} buried"
        say(f"{shown_topic(sink.topic)} to {named(sink.to)}: {counts}, circuit {sink.circuit}")
    text = _where(seen)
    behind = [each.unconfirmed for each in seen.replication.values() if each.unconfirmed is not None]
    if behind:
        text += f", {sum(behind):,} bytes not confirmed by a replica"
    if (rates := seen.rates) is not None:
        parts = {"scheduled": rates.scheduled, "dispatched": rates.dispatched, "taken": rates.taken}
        text += ", a second: " + ", ".join(f"{per_second(rate)} {what}" for what, rate in parts.items())
    say(text)
    since = f" (since {instant(seen.ends_since)} UTC)" if seen.ends_since else ""
    say(f"settings: {settings_shown(seen.settings)}{since}")
    if seen.spool is not None:
        say(f"spool {seen.spool.path}: {shown_spool(seen.spool)}")
    if seen.far is not None:
        say(f"far store {seen.far.database}: {shown_far(seen.far)}")
    for said in unsaid(health.warnings):
        complain(in_options(said))


def _where(seen: Stats) -> str:
    """The servers, and the number of schedules if there are any."""
    nodes = sorted({shard.node for shard in seen.shards})
    text = f"{seen.name}: {counted(len(seen.shards), 'shard')} on {', '.join(nodes)}, {seen.server}"
    if seen.schedules is not None and seen.schedules.count:
        paused = f" ({seen.schedules.paused:,} paused)" if seen.schedules.paused else ""
        text += f", {counted(seen.schedules.count, 'schedule')}{paused}"
    return text


NO_PROCESS = "none: no dispatcher runs (`shardq run` starts one), and no worker"


@command("Show the dispatchers and workers.")
@shared
def fleet(given: Given) -> None:
    """Show the engine's live processes: dispatchers, which serve shards, and workers, which run handlers. A process
    that does both has two lines. A killed process disappears after 3 seconds, the only dispatcher after 8, a worker
    after 30.

    example:
      shardq fleet
      shardq fleet --json | jq -r 'select(.kind == "worker") | .host'

    columns:
      serves    the shards of a dispatcher, the topics of a worker
      up        how long it has been running
      seen      since its last heartbeat; a dispatcher sends one every second (every
                5 s if it is alone), a worker every 10 s
      running   handlers now, of as many as it runs at once
      longest   the task whose handler has been running longest, and since when,
                if that is ten seconds or more
      done      tasks moved by a dispatcher, tasks handled by a worker
      failed    attempts that failed
      batch     tasks that a handler of batches got in a call, on average; only where
                a worker has such a handler
      p99 ms    a dispatcher's: how late tasks were moved; a worker's: how long
                claimed ones waited for their handler
      version   its build of shardq, with its revision if it is a checkout
      format    the newest format of stored data that it reads, 0 if its report
                can't be read; `shardq upgrade` raises the engine's
      sinks     of topics that go to URLs: the tasks that a dispatcher has
                sent of each, and the circuit if it is not closed
    """
    with looking(given) as engine:
        members = engine.fleet()
    show(given, tables.fleet(members), forms.member)
    if not members:
        complain(NO_PROCESS)
