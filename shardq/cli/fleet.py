"""How far the sweep of each shard is: what an engine without pollers of its own does not know.

Used by ``shards``, ``resize``, ``expand`` and ``shrink``. Plain reads; they change nothing and wake nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardq.calls.request import Command
from shardq.calls.resharding import meta_fields
from shardq.drivers.sync import Driver
from shardq.engine.options import STATS_TIMEOUT_S
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys

NOBODY = "nobody moves them, because no dispatcher runs: start one with `shardq run`"


@dataclass(frozen=True, slots=True)
class Sweep:
    """One shard, as a change of the number of shards sees it."""

    swept: int
    """The epoch of the change after which nothing was here that belongs elsewhere; 0: of none."""
    moved: int
    """Tasks that have left it for other shards, ever."""
    on_the_way: int
    """Tasks that have left it and are not yet where they go."""


def sweeps(driver: Driver, shards: Iterable[ShardKeys]) -> dict[int, Sweep]:
    """Shard that answers → how far its sweep is; also of those that were never opened."""
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
