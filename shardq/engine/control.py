"""Operations on the engine as a whole: changing the topology, and looking at every shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import msgspec

from shardq.atlas import Atlas
from shardq.calls import clean, observe
from shardq.calls.observe import Glance
from shardq.errors import ShardqError
from shardq.layout.keys import ShardKeys
from shardq.layout.topology import Limit, Route, Topology
from shardq.operation import (
    REPAIR_ROUND,
    Many,
    Operation,
    Pause,
    come_in_force,
    declared,
    everywhere,
    on_shard,
    opened,
    refreshed,
)


def changed(atlas: Atlas, edit: Callable[[Topology], Topology]) -> Operation[Topology]:
    """Publishes an edited topology under the next epoch; edits again when somebody else was first.

    Published before the shards are told: whoever is then refused as stale finds the newer one to read. While a number
    of shards is announced nothing else may change: what follows it is settled.
    """
    round = 0
    while True:
        known = atlas.topology
        if known.pending is not None:
            yield Pause(0.05)
            yield from refreshed(atlas) if round < REPAIR_ROUND else come_in_force(atlas)
            round += 1
            continue
        edited = msgspec.structs.replace(edit(known), epoch=known.epoch)
        if edited == known:
            # so it seems: this process may know an old one, and then there is something to change
            yield from refreshed(atlas)
            if atlas.topology.epoch == known.epoch:
                return known
            continue
        if (yield from declared(atlas, known.epoch, msgspec.structs.replace(edited, epoch=known.epoch + 1))):
            yield from opened(atlas, atlas.span())
            return atlas.topology


def routed(atlas: Atlas, topic: str, route: Route | None) -> Operation[Topology]:
    """Sends a topic's payloads to a list from now on, or no longer."""

    def edit(topology: Topology) -> Topology:
        routes = {name: to for name, to in topology.routes.items() if name != topic}
        if route is not None:
            routes[topic] = route
        return msgspec.structs.replace(topology, routes=routes)

    return (yield from changed(atlas, edit))


def paused(atlas: Atlas, topic: str, *, pause: bool) -> Operation[Topology]:
    """Gives out no more of a topic, or again, over the whole fleet."""

    def edit(topology: Topology) -> Topology:
        others = {name for name in topology.paused if name != topic}
        return msgspec.structs.replace(topology, paused=tuple(sorted(others | {topic} if pause else others)))

    return (yield from changed(atlas, edit))


def limited(atlas: Atlas, topic: str, limit: Limit) -> Operation[Topology]:
    """Gives out a topic within limits from now on; a limit of nothing ends them."""

    def edit(topology: Topology) -> Topology:
        limits = {name: other for name, other in topology.limits.items() if name != topic}
        if limit != Limit():
            limits[topic] = limit
        return msgspec.structs.replace(topology, limits=limits)

    return (yield from changed(atlas, edit))


def purged(atlas: Atlas, topic: str | None) -> Operation[int]:
    """Removes a topic's tasks, or all (None), that nobody holds; answers how many."""
    glances = yield from everywhere(atlas, lambda keys, epoch: observe.peek(keys, epoch, []))
    removed = 0
    for keys, glance in glances:
        topics = list(glance.dispatched) or [""] if topic is None else [topic]
        for position, name in enumerate(topics):
            # the looks through due and dead are for all topics at once
            go_on = clean.START if topic is not None or position == 0 else clean.Purged(0, 0, "end", "end")
            removed += yield from _purged_shard(atlas, keys, name, "topic" if topic is not None else "all", go_on)
    return removed


def _purged_shard(
    atlas: Atlas, keys: ShardKeys, topic: str, scope: Literal["topic", "all"], go_on: clean.Purged
) -> Operation[int]:
    removed = 0
    while True:
        make = partial(clean.purge, topic=topic, scope=scope, go_on=go_on)
        go_on = yield from on_shard(atlas, lambda: keys, make)
        removed += go_on.removed
        if go_on.done:
            return removed


def dead_page(atlas: Atlas, keys: ShardKeys, after: clean.Corpse | None) -> Operation[list[clean.Corpse]]:
    """The dead of one shard that follow ``after``; empty at the end."""
    return (yield from on_shard(atlas, lambda: keys, lambda keys, epoch: clean.dead(keys, epoch, after=after)))


Glances = list[tuple[ShardKeys, Glance | ShardqError]]


def glanced(atlas: Atlas, known: dict[int, list[str]]) -> Operation[Glances]:
    """Every shard with the ready lists of all its topics, or why it can't be seen: a look is wanted most then.

    ``known`` keeps the topics from one look to the next.
    """

    def make(keys: ShardKeys, epoch: int) -> observe.Peek:
        return observe.peek(keys, epoch, known.get(keys.shard, []))

    while True:
        broken: dict[int, ShardqError] = {}
        glances = yield from everywhere(atlas, make, broken=broken)
        new = {k.shard: list(g.dispatched) for k, g in glances if g.dispatched.keys() != g.ready.keys()}
        if not new:
            seen: dict[int, Glance | ShardqError] = {keys.shard: glance for keys, glance in glances} | broken
            return [(atlas.keys(shard), seen[shard]) for shard in sorted(seen)]
        known |= new


def replicated(glances: Glances, nodes: Mapping[int, str]) -> Operation[dict[str, observe.Replication]]:
    """How far the replicas of each node are, of those that could be seen and may say. ``nodes``: who serves a slot."""
    slots = {nodes[keys.slot]: keys.slot for keys, seen in glances if not isinstance(seen, ShardqError)}
    asked = {node: observe.replication(slot) for node, slot in slots.items()}
    node_of = {id(request): node for node, request in asked.items()}
    answers = yield Many(asked.values())
    return {node_of[id(request)]: said for request, said in answers if not isinstance(said, ShardqError)}
