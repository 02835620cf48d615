"""plan: the command that sizes a cluster for a load, by the costs that the benches measured. No server is asked."""

from __future__ import annotations

import textwrap
from shutil import get_terminal_size
from typing import Any

import click
import msgspec

from shardq.cli.options import NO_SERVER, RATE, SIZE, TIME, Decimal, Given, Whole, command, sharing
from shardq.cli.output import say, tell
from shardq.engine.around import counted
from shardq.features.planning import Load, NotPossible, Plan, measured
from shardq.features.planning import plan as planned


@command("Size a cluster for a load.")
@click.option("--rate", required=True, type=RATE, help="Tasks at the peak: 500/s, 50k/s, 3M/day.")
@click.option("--delay", "delay_s", required=True, type=TIME, help="The mean delay: 90, 30m, 1d.")
@click.option("--payload", default="100", show_default=True, type=SIZE, help="The mean payload: 200, 4KiB.")
@click.option(
    "--push",
    type=click.Choice(["one", "many"]),
    default="one",
    show_default=True,
    help="Tasks are pushed one at a time, or in batches: push_many, a Buffer, many coroutines.",
)
@click.option("--forward", is_flag=True, help="Payloads go to a list. Without it workers handle them.")
@click.option("--handler", "handler_s", default="0", type=TIME, help="The mean time of a handler: 20ms, 1s.")
@click.option("--replicas", type=Whole(0, 5), default=1, show_default=True, help="Replicas of each master.")
@click.option(
    "--busy",
    type=Decimal(5, 90),
    default=50,
    show_default=True,
    metavar="PERCENT",
    help="The largest share of a core that a master may use. Above half, tasks get late.",
)
@click.option(
    "--node-memory", default="8GB", show_default=True, type=SIZE, help="The most memory for tasks on a master."
)
@click.option(
    "--ahead",
    "ahead_s",
    type=TIME,
    help="With a far store: tasks due later than this wait in a database: 1h.",
)
@sharing(url=NO_SERVER)
def plan(given: Given, push: str, busy: float, **load: Any) -> None:
    """Say how many masters, shards, bytes, connections and processes a load needs, how late tasks will be, and why.

    example:
      shardq plan --rate 50000/s --delay 30m --payload 200
      shardq plan --rate 3M/day --delay 1d --payload 2KiB --handler 50ms
      shardq plan --rate 20k/s --delay 5m --payload 1kB --push many --forward
      shardq plan --rate 5M/day --delay 30d --ahead 1h

    The costs were measured on one machine, with one server version. To measure
    yours, run `make bench report` in a checkout of the source; leave room.
    """
    if load["forward"] and load["handler_s"]:
        raise click.UsageError("--handler is the time of a worker's handler, and --forward needs no worker")
    if not load["node_memory"]:
        raise click.UsageError("--node-memory 0 holds no task; give what a master may use, like 8GB")
    try:
        found = planned(Load(single=push == "one", busy=busy / 100, **load), measured())
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
        "pending": counted(found.pending, "task") + (" in Redis" if found.far_rows else ""),
        "memory": f"{decimal(found.memory)} of tasks on the fullest master; maxmemory {decimal(found.maxmemory)}",
        "far store": f"{found.far_rows:,} rows, {decimal(found.far_disk)} on the disk" if found.far_rows else "",
        "network": f"{decimal(found.bandwidth)}/s of payloads through the fullest master",
        "processes": ", ".join(processes),
        "connections": f"at most {found.connections:,} to a master",
        "busy": f"{found.busy:.0%} of a core on the fullest master",
        "lateness": f"p50 {found.late_p50_ms:.1f} ms, p99 {found.late_p99_ms:.0f} ms, from due to claimed",
    }
    for name, value in rows.items():
        if value:
            say(f"{name:<12} {value}")
    width = max(40, min(100, get_terminal_size().columns))
    for title, sentences in (("why", found.reasons), ("mind", found.cautions)):
        say(f"\n{title}")
        for sentence in sentences:
            say(textwrap.fill(sentence, width, initial_indent="  ", subsequent_indent="    "))
    say(f"\nmeasured on {found.measured}")
