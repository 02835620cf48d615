"""plan: the command that sizes a cluster for a load, by the costs that the benches measured. No server is asked."""

from __future__ import annotations

import textwrap
from shutil import get_terminal_size

import click
import msgspec

from shardq.cli.options import Given, sharing
from shardq.cli.output import say, tell
from shardq.cli.parsers import Decimal, Whole, rate, read_by, seconds, size
from shardq.engine.tables import counted
from shardq.features.planning import Load, NotPossible, Plan, measured
from shardq.features.planning import plan as planned


@click.command(
    short_help="Size a cluster for a load.",
    epilog="""\b
example:
  shardq plan --rate 50000/s --delay 30m --payload 200
  shardq plan --rate 3M/day --delay 1d --payload 2KiB --handler 50ms
  shardq plan --rate 20k/s --delay 5m --payload 1kB --push many --forward
\b
The costs come with the package: of one machine and one server version. To
measure yours, `make bench report` in a checkout of the source; leave room.""",
)
@click.option(
    "--rate",
    "per_s",
    required=True,
    metavar="RATE",
    callback=read_by(rate),
    help="Tasks at the peak: 500/s, 50k/s, 3M/day.",
)
@click.option("--delay", required=True, metavar="TIME", callback=read_by(seconds), help="The mean delay: 90, 30m, 1d.")
@click.option(
    "--payload",
    default="100",
    show_default=True,
    metavar="SIZE",
    callback=read_by(size),
    help="The mean payload: 200, 4KiB.",
)
@click.option(
    "--push",
    type=click.Choice(["one", "many"]),
    default="one",
    show_default=True,
    help="Tasks are pushed one at a time, or in batches: push_many, a Buffer, many coroutines.",
)
@click.option("--forward", is_flag=True, help="Payloads go to a list. Without it workers handle them.")
@click.option(
    "--handler", default="0", metavar="TIME", callback=read_by(seconds), help="The mean time of a handler: 20ms, 1s."
)
@click.option(
    "--replicas", type=Whole(0, 5), default=1, show_default=True, metavar="N", help="Replicas of each master."
)
@click.option(
    "--busy",
    type=Decimal(5, 90),
    default=50,
    show_default=True,
    metavar="PERCENT",
    help="The most of its core that a master is to use. Above half, tasks get late.",
)
@click.option(
    "--node-memory",
    default="8GB",
    show_default=True,
    metavar="SIZE",
    callback=read_by(size),
    help="The most memory of tasks on a master.",
)
@sharing(url="Not used: no server is asked.", name=None)
def plan(
    given: Given,
    per_s: float,
    delay: float,
    payload: int,
    push: str,
    forward: bool,
    handler: float,
    replicas: int,
    busy: float,
    node_memory: int,
) -> None:
    """Say how many masters, shards, bytes, connections and processes a load needs, and how late tasks will be, with
    the reasons.
    """
    if forward and handler:
        raise click.UsageError("--handler is the time of a worker's handler, and --forward needs no worker")
    if not node_memory:
        raise click.UsageError("--node-memory 0 holds no task; give what a master may use, like 8GB")
    load = Load(
        rate=per_s,
        delay_s=delay,
        payload=payload,
        single=push == "one",
        forward=forward,
        handler_s=handler,
        replicas=replicas,
        busy=busy / 100,
        node_memory=node_memory,
    )
    try:
        found = planned(load, measured())
    except NotPossible as exc:
        raise click.ClickException(str(exc)) from None
    if given.json:
        tell(msgspec.to_builtins(found))
    else:
        _show(found)


def _show(found: Plan) -> None:
    from rich.filesize import decimal

    processes = [f"{found.pushers} pushing", f"{found.dispatchers} `shardq run`"]
    if found.workers:
        at_once = f" with {counted(found.concurrency, 'handler')} at once in all" if found.concurrency else ""
        processes.append(f"{found.workers} `shardq work`{at_once}")
    rows = {
        "masters": f"{found.masters:,}, with {counted(found.replicas, 'replica')} each",
        "shards": f"{found.shards:,}",
        "pending": f"{found.pending:,} tasks",
        "memory": f"{decimal(found.memory)} of tasks on the fullest master; maxmemory {decimal(found.maxmemory)}",
        "network": f"{decimal(found.bandwidth)}/s of payloads through the fullest master",
        "processes": ", ".join(processes),
        "connections": f"at most {found.connections:,} to a master",
        "busy": f"{found.busy:.0%} of a core on the fullest master",
        "lateness": f"p50 {found.late_p50_ms:.1f} ms, p99 {found.late_p99_ms:.0f} ms, from due to claimed",
    }
    for name, value in rows.items():
        say(f"{name:<12} {value}")
    width = max(40, min(100, get_terminal_size().columns))
    for title, sentences in (("why", found.reasons), ("mind", found.cautions)):
        say(f"\n{title}")
        for sentence in sentences:
            say(textwrap.fill(sentence, width, initial_indent="  ", subsequent_indent="    "))
    say(f"\nmeasured on {found.measured}")
