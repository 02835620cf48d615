"""Cancels the tasks that have a tag. There is no index of tags, so that pushes and acks pay nothing for them: all
records of all shards are looked at, page by page, and each page removes what it finds.

No task that was pushed before the call, and waits until it returns, is missed:

- *In a shard.* A record stays in its place through all changes of state (scheduled, ready, leased, retried, dead).
  What is in a hash from the first page of a scan to the last is met by one of them. A scan that another process of the
  server has begun, before a failover or in another node of a cluster, begins anew: its places are others.
- *Between shards.* ``Walk`` visits each shard before all those to which its tasks may go. A task that is taken out of
  a shard before its page was read is in ``moved`` when the shard is left, or was put already. What is in ``moved`` is
  then put where it goes, and that shard is visited later. A migrator that stands still in the middle of a move changes
  nothing: a put needs the parcel only.
- *When the number of shards changes.* A shard that knows the new number refuses our calls before anything is moved by
  it; the walk then goes to its end, and begins anew by the new number.

A page looks, and removes, in one script. So a task is judged by the tags that it has then: another that took its id
in between, by a replacing push or when the first was done, keeps its place.
"""

from __future__ import annotations

from functools import partial

from shardq.core.calls import listing
from shardq.core.calls.request import FIRST_PAGE, next_page
from shardq.core.layout.keys import ShardKeys
from shardq.core.model.task import CancelledTag
from shardq.core.operation import Operation
from shardq.core.recovery import call_shard
from shardq.core.topology_cache import TopologyCache
from shardq.engine.control import Walk
from shardq.errors import ShardqError

PAGE = 1000
"""Records looked at by one call, in about a millisecond of the server; 3 or 4 ms if all of them go."""


class TagPages:
    """One cancellation of a tag, page by page."""

    def __init__(self, cache: TopologyCache, tag: str) -> None:
        self._cache = cache
        self._tag = tag
        self._walk = Walk(cache)
        self._keys: ShardKeys | None = None
        self._cursor = "0"
        self._size = FIRST_PAGE
        self._cancelled = self._looked_at = 0
        self._running: set[str] = set()

    @property
    def so_far(self) -> CancelledTag:
        return CancelledTag(cancelled=self._cancelled, running=tuple(sorted(self._running)), looked_at=self._looked_at)

    def following(self) -> Operation[bool]:
        """Looks at the next page. Returns False at the end."""
        try:
            return (yield from self._following())
        except ShardqError as exc:
            if self._cancelled:
                exc.add_note(f"{self._cancelled} tasks were cancelled before that; repeat it to cancel the rest")
            raise

    def _following(self) -> Operation[bool]:
        if self._cursor == "0":
            self._keys = yield from self._walk.following(self._keys)
        if self._keys is None:
            return False
        make = partial(listing.cancel_tag, tag=self._tag, cursor=self._cursor, count=self._size)
        page = yield from call_shard(self._cache, self._keys, make)
        self._cursor = page.cursor
        self._size = next_page(self._size, page.bytes, most=PAGE)
        self._looked_at += page.looked_at
        self._cancelled += len(page.cancelled)
        # one that was running may have been retried since, and moved to a shard that is visited later
        self._running.update(page.running)
        self._running.difference_update(page.cancelled)
        return True
