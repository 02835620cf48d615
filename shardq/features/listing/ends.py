"""The ends that shards keep of tasks that are done or cancelled: one by its id, and pages of them, the latest first.
Operations, for both drivers.

Ends have no index. A shard has them in a ring of slots, and knows when each slot was begun: a page reads whole slots,
from the newest one on, until it has what it needs. An end lies where it was written, so a page looks into all shards in
which tasks were while the oldest one was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardq.core.calls import control, kept_ends
from shardq.core.layout.keys import END_SLOTS, ShardKeys
from shardq.core.layout.lanes import key_of
from shardq.core.layout.topology import Topology
from shardq.core.layout.words import id_of, raw, shown_id
from shardq.core.model.checks import shown_instant
from shardq.core.model.ends import End, Ring
from shardq.core.model.ids import topic_of
from shardq.core.model.task import TaskInfo
from shardq.core.operation import Many, Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.features.listing.query import Place, Query, TaskPage

SLOTS = 2
"""The slots of a shard that a page reads at most, if that brings it further."""


def find(cache: TopologyCache, id: str) -> Operation[TaskInfo | None]:
    """The latest end of a task; None if none is kept."""
    topology = cache.topology
    if not topology.ends_age_ms(topic_of(id)):
        return None
    shards = [cache.keys(shard) for shard in topology.ends_homes(id)]
    now_ms = yield from _now_ms(shards)
    asked = {(keys, slot): kept_ends.of_id(keys, slot, id) for keys in shards for slot in range(len(keys.ends))}
    texts: dict[tuple[ShardKeys, int], bytes | None] = values((yield Many(asked)))
    read = (End.read(id, text) for text in texts.values() if text is not None)
    kept = [end for end in read if end is not None and _is_kept(topology, end, now_ms)]
    return info_of(max(kept, key=lambda end: end.at_ms)) if kept else None


def since(cache: TopologyCache) -> Operation[int | None]:
    """The instant in ms since which all ends are kept; None if there is none yet."""
    if not cache.topology.ends_rule:
        return None
    shards = _shards(cache)
    texts: dict[ShardKeys, bytes | None] = values(
        (yield Many({keys: kept_ends.ring(keys).briefly() for keys in shards}))
    )
    now_ms: int = yield control.clock_ms(shards[0]).briefly()
    return _since(cache.topology, map(Ring.read, texts.values()), now_ms)


def remove(cache: TopologyCache) -> Operation[None]:
    """Removes all ends."""
    shards = _shards(cache)
    values((yield Many({keys: kept_ends.remove(keys) for keys in shards})))
    values((yield Many({keys: kept_ends.forget(keys) for keys in shards})))


def end_page(cache: TopologyCache, query: Query, cursor: str | None, limit: int) -> Operation[TaskPage]:
    """Reads the page of a cursor, of ends."""
    topology, place = cache.topology, query.place(cache.name, cursor)
    if not topology.ends_rule:
        return TaskPage()
    shards = _shards(cache)
    rings, now_ms = (yield from _rings(shards)), (yield from _now_ms(shards[:1]))
    walks = {keys: _Walk.behind(place, ring) for keys, ring in rings.items()}
    found: list[End] = []
    while reading := {keys: walk.left[0][0] for keys, walk in walks.items() if walk.goes_on(place, limit)}:
        for keys, read in (yield from _slots(reading)).items():
            some = (End.read(id, text) for id, text in read.items())
            matching = [end for end in some if end is not None and _matches(query, topology, end, place, now_ms)]
            walks[keys].has_read(len(matching))
            found += matching
    known_to = max((walk.known_to for walk in walks.values() if walk.left), default=None)
    found.sort(key=_order, reverse=True)
    listed = found if known_to is None else [end for end in found if end.at_ms > known_to]
    following = None if known_to is None else Place(query.states[0], known_to + 1)
    if len(listed) > limit:
        listed = listed[:limit]
        following = Place(query.states[0], listed[-1].at_ms, listed[-1].id)
    page = TaskPage(map(info_of, listed), query.cursor(cache.name, following))
    since_ms = _since(topology, rings.values(), now_ms)
    page.since = None if since_ms is None else shown_instant(since_ms)
    return page


def info_of(end: End) -> TaskInfo:
    """The facts that a caller is told of an end."""
    id = shown_id(end.id)
    return TaskInfo(
        id=id,
        topic=topic_of(id),
        key=key_of(id),
        state=end.state,
        due=None,
        deadline=None,
        holder=end.holder,
        died=None,
        attempt=end.failures + end.lapses + (end.state == "done"),
        failures=end.failures,
        lapses=end.lapses,
        reason=None,
        payload=None,
        headers={},
        max_attempts=None,
        pushed=end.pushed,
        ended=shown_instant(end.at_ms),
        seconds=None if end.took_ms is None else end.took_ms / 1000,
        failure=end.failure,
    )


@dataclass(slots=True)
class _Walk:
    """The walk of a page through the slots of a shard."""

    left: list[tuple[int, int]]
    """The slots that are not read yet, the newest first, and when each was begun."""
    known_to: int = 0
    """All ends from behind this instant on are known."""
    count: int = 0
    """The slots that are read."""
    found: int = 0

    @classmethod
    def behind(cls, place: Place, ring: Ring) -> _Walk:
        """Passes over slots in which all is listed."""
        return cls([each for each in ring.slots if place.at is None or each[1] <= place.at])

    def goes_on(self, place: Place, limit: int) -> bool:
        """True if this page needs another slot: it has to come further than the one before."""
        is_further = self.count and (place.at is None or self.known_to + 1 < place.at)
        wants_more = self.count < SLOTS and self.found <= limit
        return bool(self.left) and (wants_more or not is_further)

    def has_read(self, found: int) -> None:
        (_, self.known_to), *self.left = self.left
        self.count, self.found = self.count + 1, self.found + found


def _shards(cache: TopologyCache) -> list[ShardKeys]:
    return [cache.keys(shard) for shard in cache.topology.ends_span()]


def _rings(shards: list[ShardKeys]) -> Operation[dict[ShardKeys, Ring]]:
    texts: dict[ShardKeys, bytes | None] = values((yield Many({keys: kept_ends.ring(keys) for keys in shards})))
    return {keys: Ring.read(text) for keys, text in texts.items()}


def _now_ms(shards: list[ShardKeys]) -> Operation[int]:
    """The latest clock of the servers of some shards."""
    times: dict[ShardKeys, int] = values((yield Many({keys: control.clock_ms(keys) for keys in shards})))
    return max(times.values())


def _slots(asked: Mapping[ShardKeys, int]) -> Operation[dict[ShardKeys, dict[str, bytes]]]:
    """All that is in a slot of each of these shards."""
    cursors = dict.fromkeys(asked, "0")
    found: dict[ShardKeys, dict[str, bytes]] = {keys: {} for keys in asked}
    while cursors:
        answers: dict[ShardKeys, Any] = values(
            (yield Many({keys: kept_ends.scan(keys, asked[keys], cursor) for keys, cursor in cursors.items()}))
        )
        for keys, (cursor, some) in answers.items():
            found[keys].update(zip(map(id_of, some[::2]), some[1::2], strict=True))
            cursors[keys] = cursor
        cursors = {keys: cursor for keys, cursor in cursors.items() if cursor != "0"}
    return found


def _since(topology: Topology, rings: Iterable[Ring], now_ms: int) -> int | None:
    known = [ring.slots for ring in rings if ring.slots]
    if not known:
        return None
    # a ring that has never been full has lost none
    turned = [slots[-1][1] for slots in known if len(slots) == END_SLOTS]
    return max(min(slots[-1][1] for slots in known), now_ms - topology.done_age_ms, *turned)


def _is_kept(topology: Topology, end: End, now_ms: int) -> bool:
    """True if an end is not too old: the ring turns a little later, and knows no topics."""
    return end.at_ms > now_ms - topology.ends_age_ms(topic_of(end.id))


def _matches(query: Query, topology: Topology, end: End, place: Place, now_ms: int) -> bool:
    if place.at is not None and _order(end) >= (place.at, raw(place.id)):
        return False
    if end.state not in query.states or (query.topic is not None and topic_of(end.id) != query.topic):
        return False
    return (query.key is None or key_of(end.id) == query.key) and _is_kept(topology, end, now_ms)


def _order(end: End) -> tuple[int, bytes]:
    return end.at_ms, raw(end.id)
