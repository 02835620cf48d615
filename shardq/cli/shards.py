"""shards: where each shard is, what it holds, who serves it, and how evenly all is spread over the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from shardq.cli.fleet import Sweep, sweeps
from shardq.cli.options import Given, pass_given, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import connected, opened
from shardq.dispatcher.membership import dispatchers
from shardq.dispatcher.shares import shares
from shardq.engine import ShardStats, Stats
from shardq.layout.keys import ShardKeys, control_keys, shard_keys
from shardq.layout.topology import Topology
from shardq.operation import run


@click.command(
    short_help="Where the shards are, and how even.",
    epilog="""\b
example:
  shardq shards
  shardq shards --json | jq .fullest_to_mean""",
)
@shared
@pass_given
def shards(given: Given) -> None:
    """Show each shard's tag, node, tasks and poller, and the spread of all over the nodes.

    All keys of a shard begin with shardq:{TAG}: and share a slot.
    """
    with opened(given) as engine, connected(engine) as driver:
        seen = engine.stats()
        keys = [shard_keys(engine.name, shard.shard) for shard in seen.shards]
        members = run(driver, dispatchers(control_keys(engine.name)))
        whole = ClusterTable(seen, engine.topology, keys, sweeps(driver, keys), members)
        nodes = whole.nodes(driver.nodes())
    if given.json:
        tell(whole.shown(nodes))
    else:
        _print(whole, nodes)


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: str
    shards: int
    tasks: int
    share: float | None


@dataclass(frozen=True, slots=True)
class ClusterTable:
    """All that was read."""

    seen: Stats
    topology: Topology
    keys: list[ShardKeys]
    sweeps: Mapping[int, Sweep]
    """Shard that answered → how far its sweep is."""
    dispatchers: list[str]

    @property
    def changing(self) -> bool:
        return bool(self.topology.priors or self.topology.pending)

    @property
    def on_the_way(self) -> int:
        return sum(sweep.on_the_way for sweep in self.sweeps.values())

    def on_the_way_from(self, shard: int) -> int | None:
        sweep = self.sweeps.get(shard)
        return sweep.on_the_way if sweep else None

    def tag(self, shard: int) -> str:
        return self.keys[shard].prefix.partition("{")[2].partition("}")[0]

    def share(self, tasks: int) -> float | None:
        """The share of all tasks; None when there are none."""
        every = held(self.seen)
        return tasks / every if every else None

    def pollers(self) -> dict[int, str]:
        """Shard → the process that serves it, as all dispatchers work it out for themselves."""
        return {
            shard: process
            for process, owned in shares(self.dispatchers, len(self.seen.shards)).items()
            for shard in owned
        }

    def motion(self, shard: int) -> str:
        """The part of a shard in a change of the number of shards."""
        topology, sweep = self.topology, self.sweeps.get(shard)
        if sweep is None:
            return "?"
        if sweep.on_the_way:
            return f"{sweep.on_the_way:,} on the way"
        if shard >= max((topology.shards, *topology.priors)):
            return "announced"
        if not topology.priors:
            return "-"
        if sweep.swept == topology.since:
            return "swept"
        return "to be swept" if shard < topology.shards else "to be emptied"

    def nodes(self, masters: list[str]) -> list[NodeRow]:
        """Those without a shard, too: they count in the mean."""
        shards, tasks = Counter[str](), Counter[str]()
        for shard in self.seen.shards:
            shards[shard.node] += 1
            tasks[shard.node] += held(shard)
        return [
            NodeRow(node, shards[node], tasks[node], self.share(tasks[node])) for node in sorted({*masters, *shards})
        ]

    def change(self) -> str:
        """A sentence on the change that is under way; empty without one."""
        topology = self.topology
        parts = []
        if topology.priors:
            swept = sum(sweep.swept == topology.since for sweep in self.sweeps.values())
            earlier = ", ".join(map(str, topology.priors))
            parts.append(
                f"tasks move from {earlier} to {topology.shards} shards: {swept} of {len(self.keys)} shards swept, "
                f"{self.on_the_way:,} tasks on the way"
            )
        if topology.pending:
            parts.append(f"a change from {topology.shards} to {topology.pending} shards is announced")
        return "; ".join(parts)

    def shown(self, nodes: list[NodeRow]) -> dict[str, Any]:
        topology, pollers = self.topology, self.pollers()
        return {
            "name": self.seen.name,
            "epoch": topology.epoch,
            "count": topology.shards,
            "priors": topology.priors,
            "pending": topology.pending,
            "dispatchers": self.dispatchers,
            "shards": [
                {
                    "shard": shard.shard,
                    "tag": self.tag(shard.shard),
                    "prefix": keys.prefix,
                    "slot": keys.slot,
                    "node": shard.node,
                    "scheduled": shard.scheduled,
                    "ready": shard.ready,
                    "leased": shard.leased,
                    "dead": shard.dead,
                    "share": self.share(held(shard)),
                    "poller": pollers.get(shard.shard),
                    "on_the_way": self.on_the_way_from(shard.shard),
                    "error": shard.error,
                    "motion": self.motion(shard.shard) if self.changing else None,
                }
                for shard, keys in zip(self.seen.shards, self.keys, strict=True)
            ],
            "nodes": nodes,
            "fullest_to_mean": {
                "shards": fullest([node.shards for node in nodes]),
                "tasks": fullest([node.tasks for node in nodes]),
            },
        }


def held(row: ShardStats | Stats) -> int:
    """Tasks of all states."""
    return row.scheduled + row.ready + row.leased + row.dead


def fullest(counts: list[int]) -> float | None:
    """How many times the mean the fullest holds; 1 is even.

    >>> fullest([4, 4]), fullest([6, 3, 0]), fullest([0, 0])
    (1.0, 2.0, None)
    """
    return max(counts) * len(counts) / sum(counts) if any(counts) else None


def _print(whole: ClusterTable, nodes: list[NodeRow]) -> None:
    from shardq.cli import shard_table

    pollers = whole.pollers()
    motion = (shard_table.Column("change", shard_table.of_shard(lambda shard: whole.motion(shard.shard)), rank=3),)
    table = shard_table.ShardTable(
        shard_table.Column("tag", shard_table.of_shard(lambda shard: whole.tag(shard.shard)), rank=11),
        shard_table.Column("slot", shard_table.of_shard(lambda shard: str(whole.keys[shard.shard].slot)), rank=12),
        *shard_table.COUNTS,
        shard_table.DEAD,
        shard_table.Column(
            "share", lambda row: _percent(whole.share(held(row))) if shard_table.seen(row) else "?", rank=10
        ),
        *(motion if whole.changing else ()),
        shard_table.NODE,
        shard_table.Column("poller", shard_table.of_shard(lambda shard: pollers.get(shard.shard, "nobody")), rank=8),
        rates=False,
    )
    shard_table.print_table(table, whole.seen)
    say("")
    shard_table.print_rows(
        ("node", " shards", " tasks", " share"),
        [(node.node, str(node.shards), f"{node.tasks:,}", _percent(node.share)) for node in nodes],
        totals=("fullest / mean", *(_ratio([getattr(node, field) for node in nodes]) for field in _SPREAD), ""),
    )
    count = len(whole.dispatchers)
    say(f"{whole.seen.name}: {whole.topology.shards} shards, {count or 'no'} dispatcher{'' if count == 1 else 's'}")
    if change := whole.change():
        say(change)
    for problem in whole.seen.problems:
        complain(problem)


_SPREAD = ("shards", "tasks")


def _ratio(counts: list[int]) -> str:
    ratio = fullest(counts)
    return "-" if ratio is None else f"{ratio:.2f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
