"""The counts of all shards, as ``stats()`` reads them."""

from __future__ import annotations

from shardq.calls import observe
from shardq.calls.observe import ShardCounts
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys
from shardq.operation import Operation
from shardq.recovery import call_every_shard
from shardq.topology_cache import TopologyCache

DRAWN_IN_ALL = 3200
"""The ids that are drawn from all shards together, for each state: with even shards an estimate is then off by two
hundredths of all tasks of its state at most, nineteen times of twenty; and it costs the servers some milliseconds,
whatever they hold.
"""

DRAWN_AT_LEAST = 16
"""From each shard."""


def drawn_of_a_shard(shards: int) -> int:
    """How many ids are drawn from each shard, at most.

    >>> drawn_of_a_shard(1), drawn_of_a_shard(16), drawn_of_a_shard(1024)
    (3200, 200, 16)
    """
    return max(DRAWN_AT_LEAST, DRAWN_IN_ALL // shards)


CountsByShard = list[tuple[ShardKeys, ShardCounts | ShardqError]]


def count_shards(cache: TopologyCache, known: dict[int, list[str]]) -> Operation[CountsByShard]:
    """Every shard with the ready lists of all its topics, or why it can't be seen: a look is wanted most then.

    ``known`` keeps the topics from one look to the next.
    """
    draw = drawn_of_a_shard(len(cache.topology.span()))

    def make(keys: ShardKeys, epoch: int) -> observe.Peek:
        return observe.peek(keys, epoch, known.get(keys.shard, []), draw=draw).briefly()

    while True:
        counts_by_shard = yield from call_every_shard(cache, make)
        new = {
            keys.shard: list(counts.dispatched)
            for keys, counts in counts_by_shard
            if not isinstance(counts, ShardqError) and counts.dispatched.keys() != counts.ready.keys()
        }
        if not new:
            return counts_by_shard
        known |= new
