"""Moves rows to Redis: an operation, that anybody may carry out, any number of times, on rows that were read without a
lock.

A row is pushed as a resend: what Redis has of it, or remembers of an earlier move, counts as pushed. When the replicas
have it, if there are any, it may be removed from the table, where it was the only copy that a failover does not lose.
A push that comes so late that Redis may have forgotten an earlier one is refused by the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardq.core.operation import Operation
from shardq.core.producer.packing import Packer
from shardq.core.replicas import ReplicaBarrier
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Conflict, ShardqError
from shardq.features.far.rows import Horizon, Row
from shardq.relay.row import Command, Numbered
from shardq.relay.sending import Failing, send


@dataclass(slots=True)
class Moved:
    """The outcome of some rows. Those in no list stay: their shard takes nothing, or its replicas are behind."""

    done: list[Row] = field(default_factory=list)
    """Redis has them: they may be removed."""
    refused: list[tuple[Row, ShardqError]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    """They were read so long ago that Redis may have forgotten an earlier move: they are to be read again."""


class Mover:
    """Moves rows for one process, from one thread at a time."""

    def __init__(self, cache: TopologyCache, packer: Packer, horizon: Horizon) -> None:
        self._cache = cache
        self._packer = packer
        self._horizon = horizon
        self._barrier = ReplicaBarrier(cache)

    def move(self, rows: Sequence[Row], read_ms: float, failing: Failing) -> Operation[Moved]:
        """Moves rows that were read at an instant of the database's clock. ``failing`` has the shards that take
        nothing, whose rows are passed over, and is given more of them.
        """
        until = int(read_ms) + self._horizon.stale_ms
        memory = f"-{self._horizon.memory_ms}-{until}"
        commands = [
            Numbered(
                number, Command("push", row.id, row.due, row.record, row.rule, row.window_left(read_ms), memory=memory)
            )
            for number, row in enumerate(rows)
        ]
        shards = {shard for row in rows for shard in self._cache.topology.homes(row.id)}
        ends = [self._cache.keys(shard) for shard in sorted(shards)]
        if new := [keys for keys in ends if not self._barrier.knows(keys.shard)]:
            yield from self._barrier.behind(new)
        # Of another program, or of another version.
        faults = {each.seq: fault for each in commands if (fault := each.command.fault) is not None}
        sound = [each for each in commands if each.seq not in faults]
        drained = yield from send(self._cache, self._packer, sound, failing)
        behind = (yield from self._barrier.behind(ends)) if drained.done else set()
        moved = Moved()
        for number in drained.done:
            if behind.isdisjoint(self._cache.topology.homes(rows[number].id)):
                moved.done.append(rows[number])
        for number, error in (*faults.items(), *drained.failed):
            if isinstance(error, Conflict) and error.state == "late":
                moved.late.append(rows[number])
            else:
                moved.refused.append((rows[number], error))
        return moved
