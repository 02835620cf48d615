"""One look at an engine from outside: its counts, its dispatchers, and how far each shard's sweep is.

Called by ``shards``, ``resize``, ``expand`` and ``shrink``. Plain reads; they change nothing and wake nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardq.core.calls.request import Command
from shardq.core.calls.resharding import meta_fields
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.serving import dispatchers
from shardq.core.layout.keys import ShardKeys, shard_keys
from shardq.core.layout.topology import Topology
from shardq.engine import Engine, Health, Stats
from shardq.engine.options import STATS_TIMEOUT_S
from shardq.engine.tables import ShardColumn, of_shard
from shardq.errors import ShardqError

NOBODY = "nobody moves them, because no dispatcher runs: start one with `shardq run`"


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
    answers = {
        asked: result
        for asked, result in driver.call_all(commands.items(), timeout=STATS_TIMEOUT_S)
        if not isinstance(result, ShardqError)
    }
    found = {}
    for shard in sorted(shard for shard, kind in answers if kind == "meta" and (shard, "moving") in answers):
        swept, moved = answers[shard, "meta"]
        found[shard] = Sweep(int(swept or 0), int(moved or 0), answers[shard, "moving"])
    return found
