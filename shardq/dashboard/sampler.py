"""The looks of a dashboard: one at a time, for all pages that are open, and none while nobody watches.

A look asks every shard for its counts. So the time between two grows with what a look costs the servers: with all pages
together they spend less than half a hundredth of a core on it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from shardq.dashboard.asking import Asker
from shardq.engine.control import drawn_of_a_shard
from shardq.engine.snapshot import Snapshot, Snapshots, behind
from shardq.engine.stats import ShardStats, Stats
from shardq.errors import ShardqError

SHARE = 0.004
"""The share of a core of the busiest server, for all looks."""

SHARD_US, DRAWN_US = 100, 3
"""The cost of a look for a server, for each shard, and for each id that is drawn to tell the topic of a task: upper
bounds of what was measured.
"""

LEAST_S, MOST_S = 1.0, 60.0
"""Bounds of the time between two looks."""

LONGEST_S = 3.0
"""A page waits so long for a look, and then shows what was seen before, with its age. The look goes on."""

LINGER_S = 5.0
"""Looks go on for so long after the last watcher has left: pages open their stream anew now and then."""

COLUMNS = 60
"""Looks of which the lateness of each shard is remembered."""

OVER_S = 30.0
"""The time over which lateness and handled tasks are shown: workers report every ten seconds, so a shorter time would
have none, one or two reports by turns.
"""


@dataclass(frozen=True, slots=True)
class Column:
    """The lateness of all shards at one look."""

    at: datetime
    late_ms: dict[int, float | None]
    """Shard → of its tasks that were dispatched since the look before, or that are overdue; None if it was not seen."""


class Sampler:
    """Looks at one engine. Used in one event loop."""

    def __init__(self, ask: Asker) -> None:
        self._ask = ask
        self.snapshots = Snapshots()
        self.columns: deque[Column] = deque(maxlen=COLUMNS)
        self.seen_at: datetime | None = None
        """When the last look that succeeded began."""
        self.looks = 0
        """Looks that were made, also those that failed."""
        self.interval_s = LEAST_S
        self._dispatched: dict[int, int] = {}
        self._looked_at = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        """The look under way, or the last one."""
        self._watchers = 0
        self._left_at = 0.0
        self._passing = 0
        self._end = asyncio.Event()
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def watchers(self) -> int:
        return self._watchers + self._passing

    @property
    def is_looking(self) -> bool:
        """True while it looks again and again."""
        return self._running is not None and not self._running.done()

    async def newest(self) -> Snapshots:
        """The newest snapshots, after a look if the last one is too old."""
        if time.monotonic() - self._looked_at >= self.interval_s:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            looking = self._looking
            await asyncio.wait({looking}, timeout=LONGEST_S)
            if looking.done():
                looking.result()
            elif not self.snapshots.trouble:
                self.snapshots.trouble = f"the servers have not answered for {LONGEST_S:g} s"
                self._tell()
        return self.snapshots

    def look_soon(self) -> None:
        """Makes the next page look, however fresh the last look is: something was changed."""
        self._looked_at = float("-inf")

    async def watch(self, *, for_s: float) -> AsyncGenerator[Snapshots]:
        """Yields what is known after each look, for so long, or until ``end``."""
        until = time.monotonic() + for_s
        self._watchers += 1
        try:
            while not self._end.is_set() and (left := until - time.monotonic()) > 0:
                if not self.is_looking:
                    self._running = asyncio.create_task(self._run())
                try:
                    async with asyncio.timeout(left):
                        await self._news.wait()
                except TimeoutError:
                    return
                if not self._end.is_set():
                    yield self.snapshots
        finally:
            self._watchers -= 1
            self._left_at = time.monotonic()

    async def pass_time(self, every_s: float, *, for_s: float) -> AsyncGenerator[None]:
        """Yields now and then without a look, for so long, or until ``end``."""
        until = time.monotonic() + for_s
        self._passing += 1
        try:
            while not self._end.is_set() and time.monotonic() < until:
                yield
                with suppress(TimeoutError):
                    async with asyncio.timeout(every_s):
                        await self._end.wait()
        finally:
            self._passing -= 1

    def end(self) -> None:
        """Ends every ``watch``: the process is about to end."""
        self._end.set()
        if self._looking is not None:
            self._looking.cancel()
        self._tell()

    async def _run(self) -> None:
        while not self._end.is_set() and (self._watchers or time.monotonic() - self._left_at < LINGER_S):
            await self.newest()
            await asyncio.sleep(max(0.05, self._looked_at + self.interval_s - time.monotonic()))

    async def _look(self) -> None:
        began, seen_at = time.monotonic(), datetime.now(UTC)
        try:
            snapshot = Snapshot(began, await self._ask(lambda engine: engine.health()))
        except ShardqError as exc:
            self.snapshots.trouble = str(exc)
        else:
            self.snapshots.add(snapshot, over_s=OVER_S)
            self.columns.append(Column(seen_at, self._late(snapshot.stats)))
            self.seen_at, self.interval_s = seen_at, interval_for(snapshot.stats)
        self.looks += 1
        self._looked_at = time.monotonic()
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _late(self, stats: Stats) -> dict[int, float | None]:
        late = {shard.shard: late_ms(shard, self._dispatched.get(shard.shard)) for shard in stats.shards}
        self._dispatched = {shard.shard: shard.dispatched for shard in stats.shards if shard.dispatched is not None}
        return late


def late_ms(shard: ShardStats, dispatched_before: int | None) -> float | None:
    """How late a shard is: the task that is overdue longest, or the last one dispatched since an earlier look."""
    if shard.error:
        return None
    has_dispatched = dispatched_before is not None and shard.dispatched != dispatched_before
    last = (shard.late_ms or 0) if has_dispatched else 0
    return max(last, 1000 * (behind(shard.head_age) or 0))


def interval_for(stats: Stats) -> float:
    """The time between two looks, so that they cost no server more than its share."""
    shards = max(1, len(stats.shards))
    drawn = drawn_of_a_shard(shards) * shards
    ids = sum(min(count, drawn) for count in (stats.scheduled, stats.leased, stats.dead))
    nodes = max(1, len({shard.node for shard in stats.shards}))
    cost_s = (shards * SHARD_US + ids * DRAWN_US) / 1e6 / nodes
    return min(MOST_S, max(LEAST_S, cost_s / SHARE))
