"""Which shards a process serves, and ids that belong to a shard."""

from __future__ import annotations

from shardq import Engine


def mine(engine: Engine) -> set[int]:
    """The shards that this process serves."""
    return {shard.shard for shard in engine.stats().shards if shard.poller == "running"}


def id_in(engine: Engine, shard: int, prefix: str = "mine") -> str:
    """The first id with this prefix that belongs to the shard."""
    return next(id for n in range(999) if engine.topology.shard_of(id := f"{prefix}-{n}") == shard)
