"""Lanes in a change of the number of shards: each is closed at the shard that it leaves, moved once nothing of it is
ready or leased there (``migration``), and then opened at the one where it belongs (``lane_keeper``). So nothing of a
lane is given out by two.

Closing and opening may be repeated by any process at any time. What was closed stays so until the change is over: what
comes back to that shard afterwards (a dead task that is requeued) waits there, is moved on, and given out at the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from shardq.core.calls import lane_control as calls
from shardq.core.calls.lane_control import Closed
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import behind
from shardq.core.operation import Operation
from shardq.core.replicas import ReplicaBarrier
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shard

PAGE = 500


@dataclass(slots=True)
class Lanes:
    """The lanes of one change, as far as one process knows them."""

    since: int = 0
    sure: set[tuple[int, str]] = field(default_factory=set)
    """Shard and lane of those that are closed there for good: its replicas have it, and its disk."""
    cursors: dict[tuple[int, str], str] = field(default_factory=dict)
    """Shard, and what is looked for → where the next look at its gates begins."""
    done: set[tuple[int, str]] = field(default_factory=set)
    """Those of which nothing was left there. What comes back later is met by the next sweep."""


def misplaced_lanes(cache: TopologyCache, source: ShardKeys) -> Operation[list[str]]:
    """The lanes in a shard that belong elsewhere."""
    found: list[str] = []
    at: str | None = ""
    while at is not None:
        page = (yield from call_shard(cache, source, partial(calls.lanes, start=at, count=PAGE))).lanes
        found += page
        at = behind(page[-1]) if len(page) == PAGE else None
    return [lane for lane in found if cache.topology.shard_of(lane) != source.shard]


def holds_left(cache: TopologyCache, source: ShardKeys) -> Operation[bool]:
    """Has the holds of lanes that belong elsewhere follow them, also of lanes without tasks. Returns True if some are
    still on their way: their lanes are opened there by and by (``lane_keeper``).
    """
    topology, left, cursor = cache.topology, False, ""
    while cursor != "0":
        cursor, lanes = yield calls.lanes_on_hold(source, cursor or "0")
        for lane in lanes:
            if (home := topology.shard_of(lane)) == source.shard:
                continue
            if (yield calls.shut(cache.keys(home), topology.stamp, lane)):
                yield calls.hold(source, topology.stamp, lane, "")
            else:
                left = True
    return left


def closed(
    cache: TopologyCache, source: ShardKeys, lanes: Sequence[str], known: Lanes | None = None
) -> Operation[list[Closed]]:
    """Closes lanes at a shard. Returns those that are surely closed, and of which nothing is ready or leased there."""
    known = known or Lanes()
    told: list[Closed] = []
    barrier = ReplicaBarrier(cache)
    new = [lane for lane in lanes if (source.shard, lane) not in known.sure]
    if new:
        yield from barrier.behind([source])  # its history, from before anything is written
    for at in range(0, len(lanes), PAGE):
        told += yield calls.close(source, cache.topology.stamp, lanes[at : at + PAGE])
    if new:
        if (yield from barrier.behind([source], disk=True)):
            told = [each for each in told if (source.shard, each.lane) in known.sure]
        else:
            known.sure.update((source.shard, lane) for lane in new)
    return [each for each in told if not each.out]
