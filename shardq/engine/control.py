"""Operations on the whole engine: changes of the topology, and counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from shardq.core.calls import node_info, observe
from shardq.core.calls.node_info import Replication
from shardq.core.calls.observe import ShardCounts
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.topology import Limit, Route, Topology
from shardq.core.model.ids import quoted_topic
from shardq.core.operation import Many, Operation
from shardq.core.recovery import call_every_shard, declare, open_shards, refresh, topology_in_force
from shardq.core.topology_cache import TopologyCache
from shardq.errors import BadInput, InvalidOption, ShardqError


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
