"""shards: where each shard is, what it holds, who serves it, and how evenly all is spread over the nodes.
``EngineView`` is one look at an engine from outside, also for ``resize``: plain reads, which change nothing and wake
no process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardq import Engine, Health, Stats
from shardq.cli.options import Given, command, shared
from shardq.cli.output import complain, say, tell
from shardq.cli.session import looking
from shardq.cli.table import Table, print_shards
from shardq.core.calls.request import Command
from shardq.core.calls.resharding import meta_fields
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.member import dispatchers, servers
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.topology import Topology
from shardq.core.layout.words import number_of
from shardq.core.resharding.resizing import held_up
from shardq.engine.around import (
    COUNTS,
    DEAD,
    NODE,
    STATS_TIMEOUT_S,
    Column,
    EngineAccess,
    ShardColumn,
    ShardStats,
    connected,
    counted,
    dispatcher_column,
    number,
    of_shard,
)
from shardq.errors import ShardqError


@command("Show where the shards are, and how even.")
@shared
def shards(given: Given) -> None:
    """Show each shard's tag, node, tasks and dispatcher, and how evenly the shards are spread over the nodes.

    All keys of a shard begin with shardq:{TAG}: and share a slot.

    example:
      shardq shards
      shardq shards --json | jq .fullest_to_mean
    """
    with looking(given) as engine, connected(EngineAccess(engine).options) as driver:
        spread = Spread(EngineView.look(engine, driver), driver.nodes())
    if given.json:
        tell(spread.shown())
    else:
        spread.print()


@dataclass(frozen=True, slots=True)
class NodeRow:
    node: str
    shards: int
    tasks: int | None
    """None if none of its shards could be read."""
    share: float | None


class Spread:
    """The shards and their tasks, over the nodes and the dispatchers."""

    def __init__(self, seen: EngineView, masters: list[str]) -> None:
        self._seen = seen
        self._stats = seen.stats
        self._servers = {shard: member.name for shard, member in servers(seen.health.fleet).items()}
        """Shard → the process that says it serves it."""
        self._keys = [shard_keys(seen.stats.name, shard.shard) for shard in seen.stats.shards]
        counts, tasks = Counter[str](dict.fromkeys(masters, 0)), Counter[str]()
        for shard in self._stats.shards:
            counts[shard.node] += 1
            if not shard.error:
                tasks[shard.node] += held(shard)
        self._nodes = [
            NodeRow(node, counts[node], tasks[node], self._share(tasks[node]))
            if node in tasks or not counts[node]
            else NodeRow(node, counts[node], None, None)
            for node in sorted(counts)
        ]
        """Nodes without a shard count in the mean, too."""

    def _share(self, tasks: int) -> float | None:
        """The share of all tasks; None when there are none."""
        every = held(self._stats)
        return tasks / every if every else None

    def _tag(self, shard: int) -> str:
        return self._keys[shard].prefix.partition("{")[2].partition("}")[0]

    @property
    def _fullest(self) -> dict[str, float | None]:
        return {
            "shards": fullest([node.shards for node in self._nodes]),
            "tasks": None if self._stats.missing else fullest([node.tasks or 0 for node in self._nodes]),
        }

    def shown(self) -> dict[str, Any]:
        topology = self._seen.topology
        return {
            "name": self._stats.name,
            "epoch": topology.epoch,
            "count": topology.shards,
            "priors": topology.priors,
            "announced": topology.pending,
            "dispatchers": self._seen.dispatchers,
            "shards": [*map(self._shard_shown, self._stats.shards)],
            "nodes": self._nodes,
            "fullest_to_mean": self._fullest,
        }

    def _shard_shown(self, shard: ShardStats) -> dict[str, Any]:
        topology, keys, sweep = self._seen.topology, self._keys[shard.shard], self._seen.sweeps.get(shard.shard)
        counts = {state: getattr(shard, state) for state in ("scheduled", "held", "ready", "leased", "dead")}
        return {
            "shard": shard.shard,
            "tag": self._tag(shard.shard),
            "prefix": keys.prefix,
            "slot": keys.slot,
            "node": shard.node,
            **counts,
            "share": self._share(held(shard)),
            "dispatcher": self._servers.get(shard.shard),
            "on_the_way": sweep.on_the_way if sweep else None,
            "error": shard.error,
            "resharding": self._seen.resharding(shard.shard) if topology.priors or topology.pending else None,
        }

    def print(self) -> None:
        change = self._change()
        print_shards(
            self._stats,
            ShardColumn("tag", of_shard(lambda shard: self._tag(shard.shard)), rank=11),
            ShardColumn("slot", of_shard(lambda shard: str(self._keys[shard.shard].slot)), rank=12),
            *COUNTS,
            DEAD,
            ShardColumn(
                "share",
                lambda row: "–" if isinstance(row, ShardStats) and row.error else _percent(self._share(held(row))),
                rank=10,
            ),
            *([resharding_column(lambda: self._seen)] if change else []),
            NODE,
            dispatcher_column(self._seen.health.fleet, self._stats.shards),
        )
        say("")
        ratios = ["-" if ratio is None else f"{ratio:.2f}" for ratio in self._fullest.values()]
        Table(
            Column[NodeRow]("node", lambda node: node.node, text=True),
            Column("shards", lambda node: str(node.shards), rank=1),
            Column("tasks", lambda node: number(node.tasks), rank=2),
            Column("share", lambda node: _percent(node.share), rank=3),
        ).print(self._nodes, totals=("fullest / mean", *ratios, ""))
        dispatchers = counted(len(self._seen.dispatchers), "dispatcher")
        say(f"{self._stats.name}: {counted(self._seen.topology.shards, 'shard')}, {dispatchers}")
        if change:
            say(change)
        for reason in self._seen.health.reasons:
            complain(reason)

    def _change(self) -> str:
        """A sentence on the resharding that is under way; empty without one."""
        topology, sweeps = self._seen.topology, self._seen.sweeps.values()
        parts = []
        if topology.priors:
            swept = sum(sweep.swept == topology.since for sweep in sweeps)
            on_the_way = sum(sweep.on_the_way for sweep in sweeps)
            parts.append(
                f"tasks move from {', '.join(map(str, topology.priors))} to {counted(topology.shards, 'shard')}: "
                f"{swept} of {counted(len(self._keys), 'shard')} swept, "
                f"{on_the_way:,} task{'' if on_the_way == 1 else 's'} on the way"
            )
            if waits := held_up(topology, {name: topic.ready for name, topic in self._stats.topics.items()}):
                parts.append(waits)
        if topology.pending:
            parts.append(f"a change from {topology.shards} to {counted(topology.pending, 'shard')} is announced")
        return "; ".join(parts)


def held(row: ShardStats | Stats) -> int:
    """Tasks of all states."""
    return (row.scheduled or 0) + (row.held or 0) + (row.ready or 0) + (row.leased or 0) + (row.dead or 0)


def fullest(counts: list[int]) -> float | None:
    """How many times the mean the fullest holds; 1 is even.

    >>> fullest([4, 4]), fullest([6, 3, 0]), fullest([0, 0])
    (1.0, 2.0, None)
    """
    return max(counts) * len(counts) / sum(counts) if any(counts) else None


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


@dataclass(frozen=True, slots=True)
class Sweep:
    """The sweep of one shard."""

    swept: int
    """The epoch of the last resharding whose sweep of this shard is complete; 0: of none."""
    moved: int
    """Tasks that have ever left the shard for others."""
    on_the_way: int
    """Tasks that have left the shard, and are not yet where they go."""


@dataclass(frozen=True, slots=True)
class EngineView:
    """The engine as it was seen."""

    health: Health
    topology: Topology
    sweeps: Mapping[int, Sweep]
    """Shard that answered → its sweep."""
    dispatchers: list[str]
    """The names of the processes with pollers."""

    @classmethod
    def look(cls, engine: Engine, driver: Driver, *, shards: int = 0) -> EngineView:
        """Reads it. ``shards``: sweeps are read of so many shards, if the engine has fewer now."""
        health = engine.health()
        span = range(max(shards, len(health.stats.shards)))
        keys = [shard_keys(engine.name, shard) for shard in span if shard not in health.stats.missing]
        members = [member.name for member in dispatchers(health.fleet)]
        return cls(health, engine.topology, _sweeps(driver, keys), members)

    @property
    def stats(self) -> Stats:
        return self.health.stats

    def resharding(self, shard: int) -> str:
        """The part of the shard in a resharding."""
        topology, sweep = self.topology, self.sweeps.get(shard)
        if sweep is None:
            return "–"
        if sweep.on_the_way:
            return f"{sweep.on_the_way:,} on the way"
        if shard >= max((topology.shards, *topology.priors)):
            return "announced"
        if not topology.priors:
            return "-"
        if sweep.swept == topology.since:
            return "swept"
        return "to be swept" if shard < topology.shards else "to be emptied"


def resharding_column(newest: Callable[[], EngineView]) -> ShardColumn:
    return ShardColumn("resharding", of_shard(lambda shard: newest().resharding(shard.shard)), rank=3)


def _sweeps(driver: Driver, shards: Iterable[ShardKeys]) -> dict[int, Sweep]:
    """Shard that answers → its sweep; also for shards that were never opened."""
    commands: dict[tuple[int, str], Command[Any]] = {}
    for keys in shards:
        commands[keys.shard, "meta"] = meta_fields(keys, "swept", "moved")
        commands[keys.shard, "moving"] = Command(keys.slot, ("HLEN", keys.moved), int)
    answers = dict(driver.call_all(commands.items(), timeout=STATS_TIMEOUT_S))
    found = {}
    for shard in sorted({shard for shard, _ in commands}):
        meta, moving = answers[shard, "meta"], answers[shard, "moving"]
        if not isinstance(meta, ShardqError) and not isinstance(moving, ShardqError):
            swept, moved = meta
            found[shard] = Sweep(number_of(swept), number_of(moved), moving)
    return found
