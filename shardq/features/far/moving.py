"""Moves rows to Redis: an operation, that anybody may carry out, any number of times, on rows that were read without a
lock.

A row is pushed as a resend: what Redis has of it, or remembers of an earlier move, counts as pushed. The row stays in
the table until a loader knows that Redis' replicas and disk have its task (``loader``): a failover or a power cut may
take the task from a server that has answered. A push that comes so late that Redis may have forgotten an earlier one is
refused by the script.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardq.core.operation import Operation
from shardq.core.producer.packing import Packer
from shardq.core.topology_cache import TopologyCache
from shardq.errors import Conflict, ShardqError
from shardq.features.far.rows import Horizon, Row
from shardq.relay.row import Command, Numbered
from shardq.relay.sending import Failing, send


@dataclass(slots=True)
class Moved:
    """The outcome of some rows. Those in no list stay: their shard takes nothing."""

    sent: list[Row] = field(default_factory=list)
    """Redis has them."""
    refused: list[tuple[Row, ShardqError]] = field(default_factory=list)
    late: list[Row] = field(default_factory=list)
    """They were read so long ago that Redis may have forgotten an earlier move: they are to be read again."""


def move(
    cache: TopologyCache, packer: Packer, horizon: Horizon, rows: Sequence[Row], read_ms: float, failing: Failing
) -> Operation[Moved]:
    """Moves rows that were read at an instant of the database's clock. ``failing`` has the shards that take nothing,
    whose rows are passed over, and is given more of them.
    """
    memory = f"-{horizon.memory_ms}-{int(read_ms) + horizon.stale_ms}"
    moved, sound = Moved(), list[Numbered]()
    for number, row in enumerate(rows):
        command = Command("push", row.id, row.due, row.record, row.rule, row.window_left(read_ms), memory=memory)
        if (fault := command.fault) is None:
            sound.append(Numbered(number, command))
        else:
            moved.refused.append((row, fault))  # of another program, or of another version
    results = yield from send(cache, packer, sound, failing)
    moved.sent += (rows[number] for number in results.done)
    for number, error in results.failed:
        if isinstance(error, Conflict) and error.state == "late":
            moved.late.append(rows[number])
        else:
            moved.refused.append((rows[number], error))
    return moved
