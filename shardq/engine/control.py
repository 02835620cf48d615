"""Operations on the engine as a whole: changing the topology, and looking at every shard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

import msgspec

from shardq.atlas import Atlas
from shardq.calls import clean, observe
from shardq.calls.observe import Glance
from shardq.errors import BadInput, InvalidOption, ShardqError, Unavailable
from shardq.growth.moves import all_brought
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

MOST_WALKS = 10
"""Through all shards, each under another number of them."""


def changed(atlas: Atlas, edit: Callable[[Topology], Topology]) -> Operation[Topology]:
    """Publishes an edited topology under the next epoch; edits again when somebody else was first. What ``edit``
    refuses with BadInput is refused by the present topology.

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
        try:
            edited = msgspec.structs.replace(edit(known), epoch=known.epoch)
        except BadInput:
            # by what this process knows, which may be old
            yield from refreshed(atlas)
            if atlas.topology.epoch == known.epoch:
                raise
            continue
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
            at_once = topology.limits.get(topic, Limit()).concurrency
            if at_once is not None:
                raise InvalidOption(
                    f"the topic {topic!r} is limited to {at_once:,} at once, so it can't be forwarded: its tasks would "
                    "leave, and are then not counted; end that limit first, or leave a rate alone"
                )
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
        if limit.concurrency is not None and topic in topology.routes:
            raise InvalidOption(
                f"the topic {topic!r} is forwarded to the list {topology.routes[topic].to!r}, so it can't be limited "
                f"to {limit.concurrency:,} at once: its tasks leave, and are then not counted; give a rate alone, or "
                "stop forwarding it first"
            )
        if limit != Limit():
            limits[topic] = limit
        return msgspec.structs.replace(topology, limits=limits)

    return (yield from changed(atlas, edit))


class Walk:
    """Through all shards, so that a task that is moved meanwhile is met in one of them at least: in the order in which
    tasks move, and after each shard all that is on its way out of it is put where it goes. Another number of shards
    changes the order, and so the walk begins anew.
    """

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._walks = 0
        self._begin()

    def _begin(self) -> None:
        self._walks += 1
        self._since = self._atlas.topology.since
        self._shards = iter(self._atlas.topology.downstream())

    def following(self, left: ShardKeys | None) -> Operation[ShardKeys | None]:
        """The next shard after the one that is ``left``; None at the end. Raises Unavailable when the number of shards
        changes again and again.
        """
        if left is not None and (self._atlas.topology.priors or self._atlas.topology.pending):
            yield from all_brought(self._atlas, left)
        shard = next(self._shards, None)
        # A number that is in force is known to every shard before anything is moved by it: as long as each took our
        # epoch, nothing was.
        if shard is None and self._atlas.topology.since != self._since:
            if self._walks >= MOST_WALKS:
                raise Unavailable(
                    f"the number of shards changed {self._walks} times meanwhile, so that some tasks may not have been "
                    "met; repeat it when no change is under way"
                )
            self._begin()
            shard = next(self._shards)
        return None if shard is None else self._atlas.keys(shard)


def purged(atlas: Atlas, topic: str | None) -> Operation[int]:
    """Removes a topic's tasks, or all (None), that nobody holds; answers how many."""
    removed, walk = 0, Walk(atlas)
    keys: ShardKeys | None = None
    try:
        while (keys := (yield from walk.following(keys))) is not None:
            removed += yield from _shard_purged(atlas, keys, topic)
    except ShardqError as exc:
        if removed:
            exc.add_note(f"{removed} tasks were purged before that; repeat it to purge the rest")
        raise
    return removed


def _shard_purged(atlas: Atlas, keys: ShardKeys, topic: str | None) -> Operation[int]:
    if topic is not None:
        return (yield from _list_purged(atlas, keys, topic, "topic", clean.START))
    # the looks through due and dead are for all topics at once
    removed, done, go_on = 0, set[str](), clean.START
    while True:
        glance = yield from on_shard(atlas, lambda: keys, lambda keys, epoch: observe.peek(keys, epoch, []))
        topics = [name for name in glance.dispatched if name not in done] or ([] if done else [""])
        if not topics:
            return removed
        for name in topics:
            removed += yield from _list_purged(atlas, keys, name, "all", go_on)
            go_on = clean.Purged(0, 0, "end", "end")
        done.update(topics)


def _list_purged(
    atlas: Atlas, keys: ShardKeys, topic: str, scope: Literal["topic", "all"], go_on: clean.Purged
) -> Operation[int]:
    removed = 0
    while True:
        make = partial(clean.purge, topic=topic, scope=scope, go_on=go_on)
        go_on = yield from on_shard(atlas, lambda: keys, make)
        removed += go_on.removed
        if go_on.done:
            return removed


def _page(atlas: Atlas, keys: ShardKeys, after: clean.Corpse | None) -> Operation[list[clean.Corpse]]:
    return (yield from on_shard(atlas, lambda: keys, partial(clean.dead, after=after)))


class DeadPages:
    """All dead tasks, page by page, each once."""

    def __init__(self, atlas: Atlas) -> None:
        self._atlas = atlas
        self._walk = Walk(atlas)
        self._keys: ShardKeys | None = None
        self._last: clean.Corpse | None = None
        self._seen: set[str] = set()

    def following(self) -> Operation[list[clean.Corpse]]:
        """The next page; empty at the end."""
        while True:
            if self._last is None:
                self._keys = yield from self._walk.following(self._keys)
            if self._keys is None:
                return []
            page = yield from _page(self._atlas, self._keys, self._last)
            self._last = page[-1] if page else None
            new = [corpse for corpse in page if corpse.id not in self._seen]
            self._seen.update(corpse.id for corpse in new)
            if new:
                return new


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
