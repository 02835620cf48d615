"""Reads the ids of a page, and their tasks. Operations, for both drivers.

*Scheduled, held, leased and dead* tasks have an instant (due time, deadline, death), and are listed by it across all
shards; those of one instant by the bytes of their ids; dead ones also exactly the other way round. Every shard gives
the first of its own behind the place of the cursor, and they are merged. A shard stops after so many ids; what others
have behind that point waits for the next page, so a page has no gap. The place of a task is a function of the task, and
not of the shard that it is in.

*Ready* tasks have no instant. They are listed shard by shard and topic by topic, as they stand in their lists.

*The tasks of a key*, where no state is asked for, are read from its lanes, topic by topic: what is leased, what is
ready, and what waits, in the order in which it goes. The place of a task is its state, and what it is called there.

**While the number of shards changes** tasks that are scheduled or dead move. One that moves between two looks of a page
could be in neither shard when that was looked at. So each page is then read twice, and what is on its way is put where
it goes in between: a task that the first look did not meet in its old shard had left that before, and is met by the
second in the new one. Under one topology a task moves once at most; if that changes meanwhile, the page is read anew.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, get_args

import msgspec

from shardq.core.calls import by_id, listing, observe, resharding
from shardq.core.calls.by_id import Found
from shardq.core.calls.lane_control import id_of_entry
from shardq.core.calls.listing import LOOK, IdPage, LanePage, LaneState, Part, SortedState, Span
from shardq.core.calls.request import Moving
from shardq.core.consumer.ready_lists import not_empty
from shardq.core.layout.keys import ShardKeys
from shardq.core.layout.lanes import key_of, of_key
from shardq.core.layout.words import MOST, id_of, raw
from shardq.core.model.record import Codec, Decoded, decode_record, undecoded
from shardq.core.model.task import State, TaskInfo
from shardq.core.operation import Many, Operation, values
from shardq.core.producer.commands_by_id import find_and_call, info_of
from shardq.core.resharding.migration import bring_in_all
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Make, call_every_shard, call_shards
from shardq.errors import AccessDenied, PayloadNotDecodable, Unavailable
from shardq.features.listing.query import Place, Query, TaskPage

T = TypeVar("T")

MOST_CHANGES = 10
"""The most times that a page is read anew because the number of shards has changed."""

SPARE = 16
"""Ids that a shard gives beyond its share of a page: shares are not equal."""

LISTS = 64
"""The most ready lists that are read for one page."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One task of a page."""

    id: str
    place: Place
    keys: ShardKeys
    """The shard that it is in."""
    is_haunted: bool = False
    """True if its id may stand in the ready list once more."""


Entries = tuple[list[Entry], Place | None]
"""The tasks of a page, and the place behind it; None: nothing follows."""


def following(cache: TopologyCache, query: Query, place: Place, limit: int) -> Operation[Entries]:
    """Reads the page behind a place: ``limit`` ids at most, all of one state but those of a key. A state without tasks
    is passed over.
    """
    if query.is_of_lanes:
        return (yield from _of_lanes(cache, query, place, limit))
    while True:
        if place.state == "ready":
            entries, last = yield from _ready(cache, query, place, limit)
        else:
            assert place.state != "done", "ends are not read here"
            assert place.state != "cancelled", "likewise"
            entries, last = yield from _sorted(cache, query, place.state, place, limit)
        if last is not None:
            return entries, last
        following = query.after(place.state)
        if entries or following is None:
            return entries, following
        place = following


def server_now(cache: TopologyCache) -> Operation[int]:
    """The latest clock of all shards, in ms."""
    make = partial(listing.page, state="scheduled", span=Span(), count=1, look=1)
    pages = values((yield from call_every_shard(cache, make)))
    return max(page.now_us for page in pages.values()) // 1000


def ready_ends(cache: TopologyCache) -> Operation[dict[tuple[int, str], int]]:
    """The place of the last entry of each ready list, by shard and topic."""
    counts = values((yield from call_every_shard(cache, partial(observe.peek, topics=()))))
    return {(keys.shard, topic): last for keys, seen in counts.items() for topic, last in seen.dispatched.items()}


# ---- scheduled, leased, dead


def _sorted(cache: TopologyCache, query: Query, state: SortedState, place: Place, limit: int) -> Operation[Entries]:
    begin = query.begin_ms if place.at is None else place.at
    first, last = ("+inf", "-inf") if query.newest else ("-inf", "+inf")
    is_past_all = begin == (-MOST if query.newest else MOST)  # instants of another program, which no caller can name
    span = Span(
        begin_ms=first if begin is None else last if is_past_all else str(begin),
        after=place.id,
        end_ms=last if query.end_ms is None else str(query.end_ms),
        newest=query.newest,
    )
    shards = len(cache.topology.span())
    parts: list[Part] = [state]
    if state == "scheduled" and cache.topology.is_keyed:
        parts.append("keyed")
    found: dict[str, Entry] = {}
    ends: list[tuple[int, bytes]] = []
    for part in parts:
        make = partial(
            listing.page,
            state=part,
            span=span,
            topic=query.topic,
            holder=query.holder,
            failed=query.failed,
            key=query.key,
            count=min(limit, 2 * limit // shards + SPARE),
            look=LOOK,
        )
        for keys, page in (yield from _in_every_shard(cache, make)):
            found.update((id, Entry(id, Place(state, at, id), keys)) for at, id in page.ids)
            if not page.whole:
                ends.append(_order(page.last))
    entries = sorted(found.values(), key=_order_of, reverse=query.newest)
    known_to: tuple[int, bytes] | None = None
    if ends:
        # the place that every shard was looked through to
        known_to = max(ends) if query.newest else min(ends)
        entries = [
            entry
            for entry in entries
            if (_order_of(entry) >= known_to if query.newest else _order_of(entry) <= known_to)
        ]
    if len(entries) > limit:
        return entries[:limit], entries[limit - 1].place
    if known_to is None:
        return entries, None
    return entries, Place(state, known_to[0], id_of(known_to[1]))


def _order(last: tuple[int, str]) -> tuple[int, bytes]:
    return last[0], raw(last[1])


def _order_of(entry: Entry) -> tuple[int, bytes]:
    assert entry.place.at is not None, "an entry has an instant"
    return entry.place.at, raw(entry.id)


def _in_every_shard(cache: TopologyCache, make: Make[IdPage]) -> Operation[list[tuple[ShardKeys, IdPage]]]:
    def look() -> Operation[list[tuple[ShardKeys, IdPage]]]:
        return list(values((yield from call_every_shard(cache, make))).items())

    return (yield from _looked(cache, look))


def _looked(cache: TopologyCache, look: Callable[[], Operation[list[T]]]) -> Operation[list[T]]:
    """Looks into shards, so that each task that stays what it is is met, also one that is moved meanwhile."""
    for _ in range(MOST_CHANGES):
        since = cache.topology.since
        found = yield from look()
        if cache.topology.priors:
            # a user that may only look leaves it to others: what is on its way then may be missing from this page
            with contextlib.suppress(AccessDenied):
                yield from _bring_in(cache)
            found += yield from look()
        if cache.topology.since == since:
            return found
    raise Unavailable(
        f"the number of shards changed {MOST_CHANGES} times while one page was read; repeat it when no change is under "
        "way"
    )


def _bring_in(cache: TopologyCache) -> Operation[None]:
    """Puts what is moving out of any shard where it goes."""
    counts: dict[ShardKeys, int] = values((yield Many({keys: resharding.moving_tasks(keys) for keys in cache.span()})))
    for keys, count in counts.items():
        if count:
            yield from bring_in_all(cache, keys)


# ---- ready


def _ready(cache: TopologyCache, query: Query, place: Place, limit: int) -> Operation[Entries]:
    lists, rest = yield from _lists(cache, query, place)
    makes = {
        (keys, topic): (
            keys,
            partial(
                listing.page_ready,
                topic=topic,
                after=place.at if (keys.shard, topic) == (place.shard, place.topic) else None,
                count=limit,
            ),
        )
        for keys, topic in lists
    }
    pages = values((yield from call_shards(cache, makes)).items())
    entries: list[Entry] = []
    for keys, topic in lists:
        page = pages[keys, topic]
        matching = [each for each in page.ids if query.key is None or key_of(each[1]) == query.key]
        ids = matching[: limit - len(entries)]
        entries += [Entry(id, Place("ready", at, "", keys.shard, topic), keys, id in page.haunted) for at, id in ids]
        if len(ids) < len(matching):
            return entries, entries[-1].place
        if not page.whole:
            return entries, Place("ready", page.last, "", keys.shard, topic)
    return entries, rest


def _lists(
    cache: TopologyCache, query: Query, place: Place
) -> Operation[tuple[list[tuple[ShardKeys, str]], Place | None]]:
    """The next ready lists from a place on, and the place of the one behind them; None: there is none. Without a topic
    in the query, empty lists are left out: names of topics are many where each customer has one.
    """
    shards = [keys for keys in cache.span() if keys.shard >= place.shard]
    if query.topic is not None:
        lists = [(keys, query.topic) for keys in shards if (keys.shard, query.topic) >= (place.shard, place.topic)]
        return _cut(lists)
    lists, some = [], 4
    while shards and len(lists) <= LISTS:
        asked = {keys: (keys, partial(observe.peek, topics=())) for keys in shards[:some]}
        counts = values((yield from call_shards(cache, asked)).items())
        named = [(keys, topic) for keys in asked for topic in sorted(counts[keys].dispatched)]
        lists += yield from not_empty(
            [each for each in named if (each[0].shard, each[1]) >= (place.shard, place.topic)]
        )
        shards, some = shards[some:], 2 * some
    return _cut(lists)


def _cut(lists: list[tuple[ShardKeys, str]]) -> tuple[list[tuple[ShardKeys, str]], Place | None]:
    if len(lists) <= LISTS:
        return lists, None
    keys, topic = lists[LISTS]
    return lists[:LISTS], Place("ready", None, "", keys.shard, topic)


# ---- the tasks of a key


_RANKS: dict[State, int] = {state: rank for rank, state in enumerate(get_args(LaneState))}


def _of_lanes(cache: TopologyCache, query: Query, place: Place, limit: int) -> Operation[Entries]:
    assert query.key is not None, "it asks for a key"
    if not cache.topology.is_keyed:
        return [], None
    topics = yield from _topics(cache, query, place)
    lanes = {topic: of_key(topic, query.key) for topic in topics[:LISTS]}

    def look() -> Operation[list[tuple[tuple[ShardKeys, str], LanePage]]]:
        makes: dict[tuple[ShardKeys, str], tuple[ShardKeys, Make[LanePage]]] = {}
        for topic, lane in lanes.items():
            begin, after = _lane_state(place) if topic == place.topic else ("leased", "")
            make = partial(listing.page_lane, lane=lane, begin=begin, after=after, count=limit)
            makes |= {(keys, topic): (keys, make) for keys in map(cache.keys, cache.topology.homes(lane))}
        return list(values((yield from call_shards(cache, makes)).items()).items())

    found = defaultdict[str, dict[str, Entry]](dict)
    ends = defaultdict[str, list[Place]](list)
    for (keys, topic), page in (yield from _looked(cache, look)):
        for state, word in page.tasks:
            id = id_of_entry(word, lanes[topic]) if state == "scheduled" else word
            found[topic][id] = Entry(id, Place(state, None, word, topic=topic), keys)
        if not page.whole:
            state, word = page.tasks[-1]
            ends[topic].append(Place(state, None, word, topic=topic))
    entries: list[Entry] = []
    for topic in lanes:
        known_to = min(ends[topic], key=_order_in_lane, default=None)
        for entry in sorted(found[topic].values(), key=lambda entry: _order_in_lane(entry.place)):
            if known_to is not None and _order_in_lane(entry.place) > _order_in_lane(known_to):
                break
            if len(entries) == limit:
                return entries, entries[-1].place
            entries.append(entry)
        if known_to is not None:
            return entries, known_to
    return entries, Place("leased", topic=topics[LISTS]) if len(topics) > LISTS else None


def _topics(cache: TopologyCache, query: Query, place: Place) -> Operation[list[str]]:
    """The topics in which the key may have tasks, from that of a place on."""
    if query.topic is not None:
        return [query.topic]
    counts = values((yield from call_every_shard(cache, partial(observe.peek, topics=()))))
    return sorted({topic for seen in counts.values() for topic in seen.dispatched if topic >= place.topic})


def _order_in_lane(place: Place) -> tuple[int, bytes]:
    return _RANKS[place.state], raw(place.id)


def _lane_state(place: Place) -> tuple[LaneState, str]:
    return next(state for state in get_args(LaneState) if state == place.state), place.id


# ---- the tasks


def task_page(
    cache: TopologyCache, query: Query, cursor: str | None, limit: int, codec: Codec | None
) -> Operation[TaskPage]:
    """Reads the page of a cursor. Without a codec payloads stay as they are stored."""
    entries, place = yield from following(cache, query, query.place(cache.name, cursor), limit)
    found = yield from stored(cache, entries)
    tasks: list[TaskInfo] = []
    for number, entry in enumerate(entries):
        if entry.id not in found:  # the records before it are all that one page may have; there is one at least
            place = entries[number - 1].place
            break
        task = found[entry.id]
        if task is not None and (task.state != "dead" if query.is_of_lanes else _is_still(task, entry)):
            info = info_of(entry.id, task, readable(task.record, codec, entry.id))
            if query.tag is None or query.tag in info.tags:
                tasks.append(info)
    return TaskPage(tasks, query.cursor(cache.name, place))


def stored(cache: TopologyCache, entries: list[Entry]) -> Operation[dict[str, Found | None]]:
    """The tasks as they are now; of each shard the first ones only, where they are large. One that is not where it was
    listed is looked for where it may have been moved since, also by a change of the number of shards that has ended.
    """
    since = cache.topology.since
    by_shard: dict[ShardKeys, list[str]] = {}
    for entry in entries:
        by_shard.setdefault(entry.keys, []).append(entry.id)
    requests = {keys: (keys, partial(by_id.get_many, ids=ids)) for keys, ids in by_shard.items()}
    answers = values((yield from call_shards(cache, requests)).items())
    found: dict[str, Found | None] = {}
    for keys, tasks in answers.items():
        for id, task in zip(by_shard[keys], tasks, strict=False):
            may_have_moved = cache.topology.priors or cache.topology.since != since or cache.home(id) != keys
            if isinstance(task, Moving) or (task is None and may_have_moved):
                # on its way to another shard, or there already; a user that may only look can't bring it in
                with contextlib.suppress(AccessDenied):
                    task = yield from find_and_call(
                        cache, id, partial(by_id.get, id=id), absent=lambda found: found is None
                    )
            if isinstance(task, Moving):
                task = None
            found[id] = task
    return found


def _is_still(task: Found, entry: Entry) -> bool:
    """True if the task is where the page found it: one that was rescheduled meanwhile is listed at its new place."""
    return task.state == entry.place.state and (task.state in ("ready", "leased") or task.instant_ms == entry.place.at)


def readable(record: bytes, codec: Codec | None, id: str) -> Decoded:
    """The content of a record in a list: without the payload, where that can't be decoded; as it is stored without a
    codec.
    """
    if codec is None:
        return undecoded(record)
    try:
        return decode_record(record, own=codec, id=id)
    except PayloadNotDecodable:
        # often the very reason of its death: it must still be listed
        return msgspec.structs.replace(undecoded(record), payload=None)
