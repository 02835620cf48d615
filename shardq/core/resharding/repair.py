"""Finds tasks that nobody would ever get, and gives them a place again: for ``shardq doctor``, and for the
``LaneKeeper``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial

from shardq.core.calls import lane_control, observe
from shardq.core.calls.lane_control import FAR_MS
from shardq.core.calls.observe import MOST_CHECKED, Fault
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ids import topic_of
from shardq.core.operation import Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import call_shard, call_shards

TOGETHER = 20
"""Calls of a trip: some ten milliseconds of a server."""

PAGE = 1000
"""Tasks of which a look for those that lack their lanes reads at a time."""


def find_faults(cache: TopologyCache, keys: ShardKeys, ids: Iterable[str]) -> Operation[dict[str, Fault]]:
    """Returns what is wrong with these ids of a shard, by id. Each is looked at by one script, at one instant."""
    by_topic: defaultdict[str, list[str]] = defaultdict(list)
    for id in dict.fromkeys(ids):
        by_topic[topic_of(id)].append(id)
    left = [some[at : at + MOST_CHECKED] for some in by_topic.values() for at in range(0, len(some), MOST_CHECKED)]
    found: dict[str, Fault] = {}
    while left:
        parts, left = left[:TOGETHER], left[TOGETHER:]
        checks = {number: (keys, partial(observe.check, ids=part)) for number, part in enumerate(parts)}
        for number, checked in values((yield from call_shards(cache, checks)).items()).items():
            found.update(checked.faults)
            if rest := parts[number][checked.looked_at :]:
                left.append(rest)
    return found


def restore(cache: TopologyCache, keys: ShardKeys, ids: Iterable[str]) -> Operation[int]:
    """Gives ids a place again that are lost or unlaned, one by one. Returns how many: the script looks once more."""
    restored = 0
    for id in ids:
        moves = len(cache.topology.homes(id)) > 1
        restored += yield from call_shard(cache, keys, partial(observe.restore, id=id, moves=moves))
    return restored


def enter_lanes(cache: TopologyCache, keys: ShardKeys, lacking: int) -> Operation[int]:
    """Has lanes know so many tasks that they lack, the earliest first. Returns how many were found: tasks that come and
    go meanwhile can hide one, which the next look meets.
    """
    entered, since, skip = 0, FAR_MS, 0
    while entered < lacking:
        page: list[tuple[str, float]] = yield lane_control.waiting(keys, since, skip, PAGE)
        if not page:
            break
        faults = yield from find_faults(cache, keys, [id for id, _ in page])
        entered += yield from restore(cache, keys, [id for id, _ in page if faults.get(id) == "unlaned"])
        last = page[-1][1]
        skip = sum(score == last for _, score in page) + (skip if last == since else 0)
        since = last
    return entered
