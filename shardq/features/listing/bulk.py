"""Cancels, requeues and reschedules all tasks that a query matches, page by page, and purges topics. Operations, for
both drivers.

A page gives the ids, and each gets the command that ``engine.cancel`` and its like send by id. Between the two a task
may have gone on: it is then dealt with as it is by that time, and one that a worker has leased meanwhile is left alone.

Every walk ends, although what it has dealt with may come back. Tasks that die anew have died after the walk began, and
are not met. Rescheduled tasks all get one instant, and those that are due then are passed over. So are tasks that
become ready after the walk has come to the ready ones, or after it began if the new time comes before that, and all of
these if it has come already. An id with ghosts stands in its list more than once, and is dealt with once: such ids are
remembered to the end.

**A purge, and the cancellation of a tag alone, miss no task that was pushed before the call and waits until it
returns**, also while shards are added or removed. ``Walk`` visits each shard before all those to which its tasks may
go. A purge takes what it finds in the lists of a topic. A tag has no index, so that pushes and acks pay nothing for it:
all records of all shards are looked at, and each page removes what it finds:

- *In a shard.* A record stays in its place through all changes of state (scheduled, ready, leased, retried, dead).
  What is in a hash from the first page of a scan to the last is met by one of them. A scan that another process of the
  server has begun, before a failover or in another node of a cluster, begins anew: its places are others.
- *Between shards.* A task that is taken out of a shard before its page was read is in ``moved`` when the shard is left,
  or was put already. What is in ``moved`` is then put where it goes, and that shard is visited later. A migrator that
  stands still in the middle of a move changes nothing: a put needs the parcel only.
- *When the number of shards changes.* A shard that knows the new number refuses our calls before anything is moved by
  it; the walk then goes to its end, and begins anew by the new number.

A page looks, and removes, in one script. So a task is judged by the tags that it has then: another that took its id
in between, by a replacing push or when the first was done, keeps its place.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, Unpack

import msgspec

from shardq.core.calls import by_id, listing, observe
from shardq.core.calls.request import FIRST_PAGE, next_page
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.ids import shown_topic
from shardq.core.model.printable import counted
from shardq.core.model.record import undecoded
from shardq.core.model.task import Outcome, State
from shardq.core.operation import Many, Operation, values
from shardq.core.producer.commands_by_id import Verb, call_each, cancelling
from shardq.core.resharding.migration import bring_in_all
from shardq.core.topology_cache import TopologyCache
from shardq.core.topology_recovery import Make, call_shard
from shardq.core.topology_upkeep import check_writer
from shardq.errors import InvalidOption, ShardqError, Unavailable
from shardq.features.listing import pages
from shardq.features.listing.query import Filter, Place, Query, cause_of

STATES: Mapping[Verb, tuple[State, ...]] = {
    "cancel": ("scheduled", "held", "ready", "dead"),
    "requeue": ("dead",),
    "reschedule": ("scheduled", "held", "ready"),
}
"""The states of the tasks that a command can be given for."""

DONE: Mapping[Verb, str] = {"cancel": "cancelled", "requeue": "requeued", "reschedule": "rescheduled"}

PAGE = 1000
"""Commands sent together, in some 10 ms of the servers. Or records looked at by one call for a tag, in about a
millisecond of the server; 3 or 4 ms if all of them go.
"""

SLOW_S = 0.005
"""A page of a tag that takes longer is followed by half of it: the shard dispatches nothing meanwhile."""

MOST_WALKS = 10
"""The most times that a walk begins anew, each under another number of shards."""


class BulkResult(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a command on many tasks, or how far it came. True if all that matched were dealt with.

    >>> result = engine.cancel_all(topic="mail", state="scheduled")
    >>> print(result.done, "of", result.matched, "cancelled; the others:", result.others)
    """

    matched: int
    """The tasks that were met."""
    done: int
    """Tasks that were cancelled, requeued or rescheduled."""
    others: Mapping[Outcome, int] = {}
    """Outcome → the number of tasks that were not done: they had been leased meanwhile, for example."""
    running: tuple[str, ...] = ()
    """The ids of those that a consumer has: they finish, and one that is retried runs again."""
    looked_at: int = 0
    """With ``tag=``: the tasks whose tags were read. One that is moved meanwhile may count twice."""

    def __bool__(self) -> bool:
        return self.done == self.matched


def bulk_query(verb: Verb, topic: str | None = None, *, name: str = "", **filter: Unpack[Filter]) -> Query:
    """Checks the filter of a command. Without any it is refused: all tasks have to be asked for by ``everything``.
    ``name``: the method's, for messages.
    """
    query = Query.checked(topic, **filter)
    if topic is None and all(each is None or each is False for each in filter.values()):
        raise InvalidOption(
            f'{name or verb + "_all"} needs topic="name" ("" is the default topic), key=, state=, due= or tag=, or '
            f"everything=True for all tasks that can be {DONE[verb]}"
        )
    states = tuple(each for each in STATES[verb] if each in query.states)
    if not states:
        allowed = " or ".join(map(repr, STATES[verb]))
        given = "due= is of scheduled tasks, which" if filter.get("due") else f"{query.states[0]} tasks"
        raise InvalidOption(f"{given} can't be {DONE[verb]}; use state={allowed}, or leave it out")
    return msgspec.structs.replace(query, states=states)


class Bulk:
    """One command on all tasks that match, page by page."""

    def __init__(
        self,
        cache: TopologyCache,
        verb: Verb,
        query: Query,
        *,
        due: int = 0,
        reason: str | None = None,
        count_only: bool = False,
    ) -> None:
        self._cache = cache
        self.verb = verb
        self.asked: Query = query
        self._query = query
        self.due: int = due
        """A due word: of a reschedule, made an instant when the walk begins."""
        self.reason = reason
        """The cause of their deaths, or of their last failures, as ``cause_of`` tells it; None: any."""
        self.count_only = count_only
        self.far_matched = self.far_done = 0
        """Tasks that wait in the far store, which this walk does not meet."""
        self._place: Place | None = query.first
        self._began_ms: int | None = None
        self._ready_ends: Mapping[tuple[int, str], int] | None = None
        self._first_ends: Mapping[tuple[int, str], int] = {}
        self._haunted: set[str] = set()
        # A tag alone is cancelled without missing a task.
        is_tag_alone = query.tag is not None and query.topic is query.key is None and not reason
        is_tag_alone = is_tag_alone and query.states == STATES["cancel"]
        self._tag_walk = TagWalk(cache, query.tag or "") if is_tag_alone and not count_only else None
        self._matched = self._done = self._looked_at = 0
        self._others: Counter[Outcome] = Counter()
        self._running: list[str] = []

    @property
    def so_far(self) -> BulkResult:
        walk = self._tag_walk
        if walk is not None:
            running = tuple(sorted(walk.running))
            return BulkResult(
                matched=self.far_matched + walk.cancelled + len(running),
                done=self.far_done + walk.cancelled,
                others={Outcome.RUNNING: len(running)} if running else {},
                running=running,
                looked_at=walk.looked_at,
            )
        return BulkResult(
            matched=self.far_matched + self._matched,
            done=self.far_done + self._done,
            others=dict(self._others),
            running=tuple(self._running),
            looked_at=self._looked_at,
        )

    @property
    def words(self) -> str:
        """The command as a sentence; empty if nothing was done."""
        query = self.asked
        which = [f"topic {shown_topic(query.topic)}"] if query.topic is not None else []
        which += ["waiting for a retry"] if query.failed else []
        ended = "died" if query.states == ("dead",) else "failed"
        which += [f"{ended} of {self.reason}"] if self.reason is not None else []
        which += [f"key {query.key}"] if query.key is not None else []
        which += [f"tag {query.tag}"] if query.tag is not None else []
        which += [f"due {query.begin_ms or ''}..{query.end_ms or ''} ms"] if query.begin_ms or query.end_ms else []
        done = self.so_far.done
        return (
            f"{DONE[self.verb]} {done:,} task{'' if done == 1 else 's'}: {', '.join(which) or 'every topic'}"
            if done
            else ""
        )

    def following(self) -> Operation[bool]:
        """Deals with the next page. Returns False at the end."""
        try:
            return (yield from self._following() if self._tag_walk is None else self._tag_walk.following())
        except ShardqError as exc:
            if done := self.so_far.done:
                exc.add_note(f"{DONE[self.verb]} before that: {counted(done, 'task')}; repeat it for the rest")
            raise

    def _following(self) -> Operation[bool]:
        if self._place is None:
            return False
        if self._began_ms is None:
            self._place = yield from self._begin(self._place)
            if self._place is None:
                return False
        # before a page that may be of ready ones
        if self._place.state != "scheduled" and self.verb == "reschedule" and self._ready_ends is None:
            self._ready_ends = yield from self._ends()
        entries, self._place = yield from pages.following(self._cache, self._query, self._place, PAGE)
        entries = [entry for entry in entries if entry.id not in self._haunted]
        self._haunted.update(entry.id for entry in entries if entry.is_haunted)
        if self.reason is not None:
            entries = yield from self._of_reason(entries, self.reason)
        if self._query.tag is not None:
            self._looked_at += len(entries)
            entries = yield from self._of_tag(entries, self._query.tag)
        ids = [entry.id for entry in entries if not self._is_passed_over(entry.place)]
        self._matched += len(ids)
        if self.count_only or not ids:
            return True
        outcomes = yield from call_each(self._cache, {id: self._make(id) for id in ids})
        failure: ShardqError | None = None
        for id, outcome in outcomes.items():
            if isinstance(outcome, ShardqError):
                failure = failure or outcome
            elif outcome:
                self._done += 1
            else:
                self._others[outcome] += 1
                if outcome is Outcome.RUNNING:
                    self._running.append(id)
        if failure is not None:
            raise failure
        return True

    def _begin(self, first: Place) -> Operation[Place | None]:
        """Notes when the walk begins, by the servers' clock. Returns the place where it does."""
        self._began_ms = now_ms = yield from pages.server_now(self._cache)
        if self.verb == "requeue":
            self._query = msgspec.structs.replace(self._query, end_ms=now_ms + 1)
        elif self.verb == "reschedule" and self.due <= 0:
            self.due = now_ms - self.due
        if self.verb == "reschedule" and self.due <= now_ms:
            left = tuple(state for state in self._query.states if state != "ready")
            self._query = msgspec.structs.replace(self._query, states=left)
            return first if first.state in left else None
        if self.verb == "reschedule" and "ready" in self._query.states and first.state != "ready":
            self._first_ends = yield from pages.ready_ends(self._cache)
        return first

    def _ends(self) -> Operation[Mapping[tuple[int, str], int]]:
        """The place of the last entry of each ready list, behind which those may be that this walk has rescheduled."""
        ends = yield from pages.ready_ends(self._cache)
        came_back = self._query.states[0] != "ready" and (yield from pages.server_now(self._cache)) >= self.due
        return self._first_ends if came_back else ends

    def _of_reason(self, entries: Sequence[pages.Entry], reason: str) -> Operation[list[pages.Entry]]:
        """The entries of tasks that died of it, or whose last attempt failed of it."""
        of_shard: dict[ShardKeys, list[str]] = {}
        for entry in entries:
            of_shard.setdefault(entry.keys, []).append(entry.id)
        answers = yield Many({keys: observe.reasons_of(keys, ids) for keys, ids in of_shard.items()})
        found: dict[str, str | None] = {}
        for keys, reasons in values(answers).items():
            found.update(zip(of_shard[keys], reasons, strict=True))
        # one without a reason may wait for a retry, or have been moved since it was listed
        left = [entry for entry in entries if found[entry.id] in ("", by_id.EXPIRED)]
        while left:
            tasks = yield from pages.stored(self._cache, left)
            found.update((id, _reason_of(task)) for id, task in tasks.items() if task is not None)
            left = [entry for entry in left if entry.id not in tasks]
        return [entry for entry in entries if (why := found[entry.id]) is not None and cause_of(why) == reason]

    def _of_tag(self, entries: Sequence[pages.Entry], tag: str) -> Operation[list[pages.Entry]]:
        """The entries of tasks that have the tag, as far as they are still there."""
        found: list[pages.Entry] = []
        left = list(entries)
        while left:
            stored = yield from pages.stored(self._cache, left)
            for entry in left:
                task = stored.get(entry.id)
                if task is not None and tag in undecoded(task.record).content.tags:
                    found.append(entry)
            left = [entry for entry in left if entry.id not in stored]
        return found

    def _is_passed_over(self, place: Place) -> bool:
        """True if a rescheduled task may have come back to that place."""
        if self.verb != "reschedule" or place.at is None:
            return False
        if place.state != "ready" or self._ready_ends is None:
            return place.at == self.due
        return place.at > self._ready_ends.get((place.shard, place.topic), 0)

    def _make(self, id: str) -> Make[Outcome]:
        if self.verb == "cancel":
            return partial(cancelling, self._cache, id)
        return partial(by_id.requeue if self.verb == "requeue" else by_id.reschedule, id=id, due=self.due)


def _reason_of(task: by_id.Found) -> str | None:
    """None for a task that has not failed."""
    return task.reason or "" if task.state == "dead" or task.failures else None


# ---- walks that no task escapes


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


def purge(cache: TopologyCache, topic: str | None, removed: int = 0) -> Operation[int]:
    """Removes a topic's tasks, or all (None), that no consumer holds. Returns how many, with ``removed`` before."""
    yield from check_writer(cache)  # a worker would be refused halfway, behind the ready tasks
    walk = Walk(cache)
    keys: ShardKeys | None = None
    try:
        while (keys := (yield from walk.following(keys))) is not None:
            removed += yield from _purge_shard(cache, keys, topic)
    except ShardqError as exc:
        if removed:
            exc.add_note(f"purged before that: {counted(removed, 'task')}; repeat it to purge the rest")
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


class TagWalk:
    """One cancellation of a tag, page by page."""

    def __init__(self, cache: TopologyCache, tag: str) -> None:
        self._cache = cache
        self._tag = tag
        self._walk = Walk(cache)
        self._keys: ShardKeys | None = None
        self._cursor = "0"
        self._size = FIRST_PAGE
        self._most = PAGE
        self._quickest_s = math.inf
        self.cancelled: int = 0
        self.looked_at: int = 0
        self.running: set[str] = set()
        """The ids of the tag's tasks that were leased when they were looked at."""

    def following(self) -> Operation[bool]:
        """Looks at the next page. Returns False at the end."""
        if self._cursor == "0":
            self._keys = yield from self._walk.following(self._keys)
        if self._keys is None:
            return False
        make = partial(listing.cancel_tag, tag=self._tag, cursor=self._cursor, count=self._size)
        began = time.monotonic()
        page = yield from call_shard(self._cache, self._keys, make)
        self._pace(time.monotonic() - began)
        self._cursor = page.cursor
        self._size = next_page(self._size, page.bytes, most=self._most)
        self.looked_at += page.looked_at
        self.cancelled += len(page.cancelled)
        # one that was running may have been retried since, and moved to a shard that is visited later
        self.running.update(page.running)
        self.running.difference_update(page.cancelled)
        return True

    def _pace(self, took_s: float) -> None:
        """Halves the pages while they hold a shard up, beside the time of the network."""
        self._quickest_s = min(self._quickest_s, took_s)
        held_s = took_s - self._quickest_s
        if held_s > SLOW_S:
            self._most = max(FIRST_PAGE, self._size // 2)
        elif held_s < SLOW_S / 4:
            self._most = min(PAGE, 2 * self._most)
