"""resize: another number of shards, while everything runs. With --dry-run it shows how many tasks that would move, node
by node, by the engine's estimates.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass

import click

from shardq import Engine
from shardq.cli.options import RATE, Given, Whole, command, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import opened
from shardq.cli.shards import EngineView, resharding_column
from shardq.cli.table import ShardView, Table
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import NO_DISPATCHER
from shardq.core.layout.keys import shard_keys
from shardq.core.layout.slots import MAX_SHARDS
from shardq.core.resharding import Resize
from shardq.engine.around import COUNTS, Column, EngineAccess, connected, counted

LOOK_S = 0.5
"""Between two looks of --wait; each asks every shard for a few counts."""

PLAIN_S = 2.0
"""Between two lines where no table can be drawn."""


@command("Change the number of shards while all runs.")
@click.argument("shards", metavar="N", type=Whole(1, MAX_SHARDS))
@click.option("--rate", type=RATE, help="Move tasks at this rate at most: 5000, 50k/s, 600/min. Default: no limit.")
@click.option("--wait", is_flag=True, help="Wait until every task is where it belongs.")
@click.option("--dry-run", is_flag=True, help="Only show how many tasks would move, and where to.")
@shared
def resize(given: Given, shards: int, rate: float | None, wait: bool, dry_run: bool) -> None:
    """Use N shards from now on, more or fewer than there are, while everything runs. Dispatchers then move tasks to
    where they belong. Shards that are no longer used are served until they are empty.

    The command returns when N shards are in use. Run it again to continue a change that was interrupted.

    example:
      shardq resize 32 --dry-run
      shardq resize 32 --wait
      shardq resize 32 --rate 5000
    """
    if dry_run and wait:
        raise click.UsageError("--dry-run moves nothing, so there is nothing to --wait for")
    with opened(given) as engine, connected(EngineAccess(engine).options) as driver:
        if dry_run:
            _show_preview(given, engine, driver, engine.resize(shards, dry_run=True), rate)
            return
        watcher = _Watcher(engine, driver, shards)
        try:
            change = engine.resize(shards, rate=rate)
            watcher.look(change)
            if wait:
                _wait(given, watcher, change)
        except KeyboardInterrupt:
            complain(
                f"\nthe change to {counted(shards, 'shard')} goes on without this command: `shardq shards` shows how "
                "far it is, the same command with --wait waits for it again"
            )
            raise
    progress, moved, dispatchers = watcher.progress, watcher.moved, len(watcher.seen.dispatchers)
    in_force = f"{counted(progress.shards, 'shard')} {'is' if progress.shards == 1 else 'are'} in force"
    if given.json:
        tell(asdict(progress) | {"moved": moved, "dispatchers": dispatchers})
    elif progress.done:
        say(f"{in_force}, and every task is where it belongs: {moved:,} moved")
    else:
        say(f"{in_force}; `shardq shards` shows how far the moving of tasks is")
    if not progress.done and not dispatchers:
        complain(NO_DISPATCHER)


class _Watcher:
    """Looks at a change of the number of shards. Made before the change, because it counts from there."""

    def __init__(self, engine: Engine, driver: Driver, shards: int) -> None:
        self._engine = engine
        self._driver = driver
        # shards that fall away count even when the engine has forgotten them
        self._count = max(shards, len(engine.topology.span()))
        self._before: dict[int, int] = {}
        """Shard → tasks that had ever left it at the first look."""
        self._now: dict[int, int] = {}
        """The same at the last look that the shard answered."""
        self._expected = engine.resize(shards, dry_run=True).tasks
        """The estimate of the tasks that will move; 0 if the change was under way before."""
        self.look(engine.resize(dry_run=True))

    def look(self, change: Resize) -> None:
        """Reads ``progress`` and ``seen`` anew."""
        self.progress = change.progress()
        self.seen = EngineView.look(self._engine, self._driver, shards=self._count)
        for shard, sweep in self.seen.sweeps.items():
            self._before.setdefault(shard, sweep.moved)
            self._now[shard] = sweep.moved

    @property
    def moved(self) -> int:
        """Tasks moved since the first look."""
        return sum(self._now.values()) - sum(self._before.values())

    @property
    def is_alone(self) -> bool:
        """True if tasks are left to move, and no dispatcher runs."""
        return not self.progress.done and not self.seen.dispatchers

    def __str__(self) -> str:
        expected = f" of about {self._expected:,}" if self._expected else ""
        busy = self.seen.stats.ready + self.seen.stats.leased
        # some of them may belong elsewhere, and hold up the end
        draining = f"; {busy:,} ready or leased, not moved" if busy else ""
        waits = f"; {self.progress.held_up}" if self.progress.held_up else ""
        swept = f"{self.progress.swept} of {counted(self.progress.of, 'shard')} swept"
        return f"{self.moved:,}{expected} {'task' if self.moved == 1 else 'tasks'} moved, {swept}{draining}{waits}"


def _wait(given: Given, watcher: _Watcher, change: Resize) -> None:
    """Shows the change until it is done."""
    warned = False
    with ExitStack() as stack:
        columns = (*COUNTS, resharding_column(lambda: watcher.seen))
        view = None if given.json else stack.enter_context(ShardView(*columns, plain_s=PLAIN_S))
        while True:
            if watcher.is_alone and not warned:
                complain(NO_DISPATCHER)
            warned = watcher.is_alone
            if view is not None:
                view.show(watcher.seen.stats, str(watcher))
            if watcher.progress.done:
                return
            time.sleep(LOOK_S)
            watcher.look(change)


@dataclass(slots=True)
class NodeFlow:
    """Tasks that would leave a node's shards, and come to them. Those that stay within the node count in both."""

    node: str
    leaving: int = 0
    coming: int = 0
    leaving_bytes: int = 0
    coming_bytes: int = 0


def _show_preview(given: Given, engine: Engine, driver: Driver, preview: Resize, rate: float | None) -> None:
    nodes = {node: NodeFlow(node) for node in driver.nodes()}
    between = {"tasks": 0, "bytes": 0}
    for flow in preview.flows:
        ends = [driver.node_of(shard_keys(engine.name, shard).slot) for shard in (flow.source, flow.target)]
        source, target = (nodes.setdefault(node, NodeFlow(node)) for node in ends)
        source.leaving += flow.tasks
        source.leaving_bytes += flow.bytes
        target.coming += flow.tasks
        target.coming_bytes += flow.bytes
        if source is not target:
            between["tasks"] += flow.tasks
            between["bytes"] += flow.bytes
    rows = [nodes[node] for node in sorted(nodes)]
    present, tasks, moved_bytes = engine.topology.shards, preview.tasks or 0, preview.bytes or 0
    seconds = tasks / rate if rate else None
    if given.json:
        counts = {"present": present, "shards": preview.shards, "tasks": tasks, "bytes": preview.bytes}
        tell(counts | {"between_nodes": between, "nodes": [asdict(row) for row in rows], "seconds": seconds})
        return
    from rich.filesize import decimal

    Table(
        Column[NodeFlow]("node", lambda node: node.node, text=True),
        Column("leaving", lambda node: f"{node.leaving:,}", rank=1),
        Column("bytes", lambda node: decimal(node.leaving_bytes), rank=3),
        Column("coming", lambda node: f"{node.coming:,}", rank=2),
        Column("bytes", lambda node: decimal(node.coming_bytes), rank=4),
    ).print(rows, totals=("all", f"{tasks:,}", decimal(moved_bytes), f"{tasks:,}", decimal(moved_bytes)))
    say(
        f"from {present} to {counted(preview.shards, 'shard')}: about {counted(tasks, 'task')} would move, of "
        f"{decimal(moved_bytes)}, {between['tasks']:,} of them to another node"
        + (f", in {seconds:,.0f} s" if seconds is not None else "")
    )
    say("nothing was moved; tasks that are ready or leased would stay where they are until they are done")
