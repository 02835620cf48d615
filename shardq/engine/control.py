"""Operations on the whole engine: changes of the topology, purges, counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import msgspec

from shardq.core.calls import listing, node_info, observe
from shardq.core.calls.node_info import Replication
from shardq.core.calls.observe import ShardCounts
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Limit, Route, Topology
from shardq.core.model.ids import quoted_topic
from shardq.core.operation import Many, Operation
from shardq.core.recovery import call_every_shard, call_shard, declare, open_shards, refresh, topology_in_force
from shardq.core.resharding.migration import bring_in_all
from shardq.core.topology_cache import TopologyCache
from shardq.errors import BadInput, InvalidOption, ShardqError, Unavailable

MOST_WALKS = 10
"""The most times that a walk begins anew, each under another number of shards."""


def edit_topology(cache: TopologyCache, edit: Callable[[Topology], Topology]) -> Operation[Topology]:
    """Publishes an edited topology under the next epoch; edits again when somebody else was first. What ``edit``
    refuses with BadInput is refused by the present topology.

    Published before the shards are told: whoever is then refused as stale finds the newer one to read. While a number
    of shards is announced nothing else may change: what follows it is settled.
    """
    while True:
        known = yield from topology_in_force(cache)
        try:
            edited = msgspec.structs.replace(edit(known), epoch=known.epoch)
        except BadInput:
            # by what this process knows, which may be old
            yield from refresh(cache)
            if cache.topology.epoch == known.epoch:
                raise
            continue
        if edited == known:
            # so it seems: this process may know an old one, and then there is something to change
            yield from refresh(cache)
            if cache.topology.epoch == known.epoch:
                return known
            continue
        if (yield from declare(cache, known.epoch, msgspec.structs.replace(edited, epoch=known.epoch + 1))):
            yield from open_shards(cache, cache.span())
            return cache.topology


def route(cache: TopologyCache, topic: str, route: Route | None) -> Operation[Topology]:
    """Forwards a topic's payloads from now on; None ends it."""

    def edit(topology: Topology) -> Topology:
        routes = {name: to for name, to in topology.routes.items() if name != topic}
        if route is not None:
            at_once = topology.limits.get(topic, Limit()).concurrency
            if at_once is not None and route.is_here:
                raise InvalidOption(
                    f"the topic {quoted_topic(topic)} is limited to {at_once:,} at once, so it can't be forwarded: its "
                    "tasks would leave, and are then not counted; end that limit first, or leave a rate alone"
                )
            routes[topic] = route
        ended = {name: to for name, to in topology.ended.items() if name != topic}
        return msgspec.structs.replace(topology, routes=routes, ended=ended)

    return (yield from edit_topology(cache, edit))


def pause(cache: TopologyCache, topic: str, *, pause: bool) -> Operation[Topology]:
    """Pauses or resumes a topic over the whole fleet."""

    def edit(topology: Topology) -> Topology:
        others = {name for name in topology.paused if name != topic}
        return msgspec.structs.replace(topology, paused=tuple(sorted(others | {topic} if pause else others)))

    return (yield from edit_topology(cache, edit))


def limit(cache: TopologyCache, topic: str, limit: Limit) -> Operation[Topology]:
    """Limits a topic from now on; an empty limit ends that."""

    def edit(topology: Topology) -> Topology:
        limits = {name: other for name, other in topology.limits.items() if name != topic}
        route = topology.routes.get(topic)
        if limit.concurrency is not None and route is not None and route.is_here:
            raise InvalidOption(
                f"the topic {quoted_topic(topic)} is forwarded to {route.named}, so it can't be limited "
                f"to {limit.concurrency:,} at once: its tasks leave, and are then not counted; give a rate alone, or "
                "stop forwarding it first"
            )
        if limit != Limit():
            limits[topic] = limit
        return msgspec.structs.replace(topology, limits=limits)

    return (yield from edit_topology(cache, edit))


def configure(cache: TopologyCache, changes: Mapping[str, int | float]) -> Operation[Topology]:
    """Changes settings of the engine from now on, by name."""

    def edit(topology: Topology) -> Topology:
        return msgspec.structs.replace(topology, settings=msgspec.structs.replace(topology.settings, **changes))

    return (yield from edit_topology(cache, edit))


class Walk:
    """A walk through all shards that meets every task in at least one of them, also those that are moved meanwhile. It
    follows the order in which tasks move, and brings moves out of a shard to their end before it goes on to the next.
    Another number of shards changes the order, so the walk begins anew.
    """

    def __init__(self, cache: TopologyCache) -> None:
        self._cache = cache
        self._walks = 0
        self._begin()

    def _begin(self) -> None:
        self._walks += 1
        self._since = self._cache.topology.since
        self._shards = iter(self._cache.topology.downstream())

    def following(self, left: ShardKeys | None) -> Operation[ShardKeys | None]:
        """The next shard after the one that is ``left``; None at the end. Raises Unavailable when the number of shards
        changes again and again.
        """
        if left is not None and (self._cache.topology.priors or self._cache.topology.pending):
            yield from bring_in_all(self._cache, left)
        shard = next(self._shards, None)
        # Every shard knows a number before anything is moved by it: as long as each took our epoch, nothing was.
        if shard is None and self._cache.topology.since != self._since:
            if self._walks >= MOST_WALKS:
                raise Unavailable(
                    f"the number of shards changed {self._walks} times meanwhile, so that some tasks may not have been "
                    "met; repeat it when no change is under way"
                )
            self._begin()
            shard = next(self._shards)
        return None if shard is None else self._cache.keys(shard)


def purge(cache: TopologyCache, topic: str | None) -> Operation[int]:
    """Removes a topic's tasks, or all (None), that nobody holds. Returns how many."""
    removed, walk = 0, Walk(cache)
    keys: ShardKeys | None = None
    try:
        while (keys := (yield from walk.following(keys))) is not None:
            removed += yield from _purge_shard(cache, keys, topic)
    except ShardqError as exc:
        if removed:
            exc.add_note(f"{removed} tasks were purged before that; repeat it to purge the rest")
        raise
    return removed


def _purge_shard(cache: TopologyCache, keys: ShardKeys, topic: str | None) -> Operation[int]:
    if topic is not None:
        return (yield from _purge_list(cache, keys, topic, "topic", listing.START))
    # the looks through due and dead are for all topics at once
    removed, done, go_on = 0, set[str](), listing.START
    while True:
        counts = yield from call_shard(cache, keys, lambda keys, epoch: observe.peek(keys, epoch, []))
        topics = [name for name in counts.dispatched if name not in done] or ([] if done else [""])
        if not topics:
            return removed
        for name in topics:
            removed += yield from _purge_list(cache, keys, name, "all", go_on)
            go_on = listing.Purged(0, 0, "end", "end")
        done.update(topics)


def _purge_list(
    cache: TopologyCache, keys: ShardKeys, topic: str, scope: Literal["topic", "all"], go_on: listing.Purged
) -> Operation[int]:
    removed = 0
    while True:
        make = partial(listing.purge, topic=topic, scope=scope, go_on=go_on)
        go_on = yield from call_shard(cache, keys, make)
        removed += go_on.removed
        if go_on.done:
            return removed


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


def replication(counts_by_shard: CountsByShard, nodes: Mapping[int, str]) -> Operation[dict[str, Replication]]:
    """Returns how far the replicas of each node are, for nodes that answer. ``nodes``: slot → its node."""
    slots = {nodes[keys.slot]: keys.slot for keys, seen in counts_by_shard if not isinstance(seen, ShardqError)}
    answers = yield Many({node: node_info.replication(slot).briefly() for node, slot in slots.items()})
    return {node: said for node, said in answers if not isinstance(said, ShardqError)}
