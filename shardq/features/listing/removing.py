"""Removes the tasks of a tag, of a topic, or all: walks that no task escapes, also while shards are added or removed.

``Walk`` visits each shard before all those to which its tasks may go, so a task is met wherever it moves. A purge takes
what it finds in the lists of a topic. A tag has no index, so that pushes and acks pay nothing for it: all records of
all shards are looked at, page by page, and each page removes what it finds.

No task of the tag that was pushed before the call, and waits until it returns, is missed:

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

from functools import partial
from typing import Literal

from shardq.core.calls import listing, observe
from shardq.core.calls.request import FIRST_PAGE, next_page
from shardq.core.layout.keys import ShardKeys
from shardq.core.operation import Operation
from shardq.core.recovery import call_shard
from shardq.core.resharding.migration import bring_in_all
from shardq.core.topology_cache import TopologyCache
from shardq.errors import ShardqError, Unavailable

PAGE = 1000
"""Records looked at by one call, in about a millisecond of the server; 3 or 4 ms if all of them go."""

MOST_WALKS = 10
"""The most times that a walk begins anew, each under another number of shards."""


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


class TagWalk:
    """One cancellation of a tag, page by page."""

    def __init__(self, cache: TopologyCache, tag: str) -> None:
        self._cache = cache
        self._tag = tag
        self._walk = Walk(cache)
        self._keys: ShardKeys | None = None
        self._cursor = "0"
        self._size = FIRST_PAGE
        self.cancelled = self.looked_at = 0
        self.running: set[str] = set()
        """The ids of the tag's tasks that were leased when they were looked at."""

    def following(self) -> Operation[bool]:
        """Looks at the next page. Returns False at the end."""
        if self._cursor == "0":
            self._keys = yield from self._walk.following(self._keys)
        if self._keys is None:
            return False
        make = partial(listing.cancel_tag, tag=self._tag, cursor=self._cursor, count=self._size)
        page = yield from call_shard(self._cache, self._keys, make)
        self._cursor = page.cursor
        self._size = next_page(self._size, page.bytes, most=PAGE)
        self.looked_at += page.looked_at
        self.cancelled += len(page.cancelled)
        # one that was running may have been retried since, and moved to a shard that is visited later
        self.running.update(page.running)
        self.running.difference_update(page.cancelled)
        return True
