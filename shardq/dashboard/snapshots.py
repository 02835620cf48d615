"""The readings of the engine that all open pages share: snapshots, one at a time, and none while no page is open; the
history and the forecasts, each kept for a while.

A snapshot asks every shard for its counts. So the time between two grows with what one costs the servers: with all
pages together they spend less than a hundredth of a core on it.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anyio import CapacityLimiter, to_thread

from shardq import Engine, Stats
from shardq.engine.around import KeyList, ShardStats, Snapshot, Snapshots, behind, drawn_of_a_shard, whole_of_a_shard
from shardq.errors import ShardqError
from shardq.features.history import History
from shardq.features.listing.forecast import Forecast, Horizon

if TYPE_CHECKING:
    from shardq import AsyncEngine

T = TypeVar("T")

THREADS = 8
"""Threads that wait for servers at once. They are the dashboard's own: a silent server takes none from the program that
it is mounted in.
"""

SHARE = 0.01
"""The share of a core of the busiest server, for all snapshots."""

SHARD_US, DRAWN_US, TOLD_US = 100, 3, 0.4
"""The cost of a snapshot for a server, for each shard, for each id that is drawn to tell the topic of a task, and for
each where a shard tells all of them: upper bounds of what was measured.
"""

LEAST_S, MOST_S = 1.0, 60.0
"""Bounds of the time between two snapshots."""

LONGEST_S = 3.0
"""A page waits so long for a snapshot, and then shows the one before, with its age. The reading goes on."""

LINGER_S = 5.0
"""Snapshots go on for so long after the last page has closed its stream: pages open it anew now and then."""

COLUMNS = 60
"""Snapshots of which the lateness of each shard is remembered."""

OVER_S = 30.0
"""The time over which lateness and handled tasks are shown: workers report every ten seconds, so a shorter time would
have none, one or two reports by turns.
"""

FORECAST_S = 10.0
"""The time for which a forecast is shown: it is some sixty look-ups in every shard."""

KEYS_S = 2.0
"""The same for the largest keys of a topic: some milliseconds of every shard."""

MOST_KEPT = 100
"""Readings that are kept: a topic each, and some of the history and forecasts."""

TIMELINE_S = 30.0
"""The same for the overview, which asks as long as it is open: a row of the history comes each minute."""


class Caller:
    """Calls the engine: one for threads in a thread, one for asyncio in the loop. Pages are written once: the twins
    have the same names, and what an AsyncEngine returns is awaited here. The dashboard has no engine of its own: that
    would not know the pollers, workers and relays of the program, of which ``health()`` tells.

    >>> page = await call(lambda engine: engine.tasks(state="dead", limit=100))
    """

    def __init__(self, engine: Engine | AsyncEngine) -> None:
        self._engine = engine
        self._limiter: CapacityLimiter | None = None

    async def __call__(self, call: Callable[[Engine], T]) -> T:
        if isinstance(self._engine, Engine):
            if self._limiter is None:
                self._limiter = CapacityLimiter(THREADS)
            return await to_thread.run_sync(call, self._engine, limiter=self._limiter)
        answer = call(cast(Engine, self._engine))
        return cast(T, await answer) if inspect.isawaitable(answer) else answer


@dataclass(frozen=True, slots=True)
class Column:
    """The lateness of all shards at one snapshot."""

    at: datetime
    late_ms: dict[int, float | None]
    """Shard → of its tasks that were dispatched since the snapshot before, or that are overdue; None: not read."""


class SharedSnapshots:
    """Takes the snapshots of one engine. Used in one event loop."""

    def __init__(self, call: Caller) -> None:
        self._call = call
        self.series: Snapshots = Snapshots()
        self.columns: deque[Column] = deque(maxlen=COLUMNS)
        self.seen_at: datetime | None = None
        """When the reading of the newest snapshot began."""
        self.taken: int = 0
        """Snapshots that were taken, also those that failed."""
        self.interval_s: float = LEAST_S
        self._dispatched: dict[int, int] = {}
        self._taken_at = float("-inf")
        self._taking: asyncio.Task[None] | None = None
        """The reading under way, or the last one."""
        self.watchers: int = 0
        """Pages that are open."""
        self._waiting = 0
        """Open pages that wait for snapshots."""
        self._left_at = 0.0
        self._end = asyncio.Event()
        self._news = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._kept: dict[tuple[str, str], tuple[float, Any]] = {}

    @property
    def is_running(self) -> bool:
        """True while snapshots are taken again and again."""
        return self._running is not None and not self._running.done()

    async def newest(self) -> Snapshots:
        """The newest snapshots, after another if the last one is too old."""
        if time.monotonic() - self._taken_at >= self.interval_s:
            if self._taking is None or self._taking.done():
                self._taking = asyncio.create_task(self._take())
            taking = self._taking
            await asyncio.wait({taking}, timeout=LONGEST_S)
            if taking.done():
                taking.result()
            elif not self.series.trouble:
                self.series.trouble = f"the servers have not answered for {LONGEST_S:g} s"
                self._tell()
        return self.series

    def expire(self) -> None:
        """Makes the next page take a snapshot, however fresh the last one is: something was changed."""
        self._taken_at = float("-inf")
        self._kept = {each: found for each, found in self._kept.items() if each[0] != "keys"}

    async def watch(self, *, for_s: float, every_s: float | None = None) -> AsyncGenerator[None]:
        """Yields at once and after each snapshot, for so long, or until ``end``. ``every_s``: the time between two, for
        what comes from no snapshot.
        """
        until = time.monotonic() + for_s
        self.watchers += 1
        self._waiting += every_s is None
        try:
            while not self._end.is_set() and (left := until - time.monotonic()) > 0:
                yield
                if every_s is None and not self.is_running:
                    self._running = asyncio.create_task(self._run())
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, every_s or left)):
                        await (self._news if every_s is None else self._end).wait()
        finally:
            self.watchers -= 1
            self._waiting -= every_s is None
            self._left_at = time.monotonic()

    def end(self) -> None:
        """Ends every ``watch``: the process is about to end."""
        self._end.set()
        if self._taking is not None:
            self._taking.cancel()
        self._tell()

    async def forecast(self, horizon: Horizon, fresh_s: float | None = None) -> Forecast:
        fresh_s = FORECAST_S if fresh_s is None else fresh_s
        return await self._keep("forecast", horizon, lambda engine: engine.forecast(horizon), fresh_s)

    async def timeline(self, horizon: Horizon) -> tuple[History, Forecast]:
        """The history, and the forecast in the same buckets."""
        past = await self._keep("history", horizon, lambda engine: engine.history(horizon), TIMELINE_S)
        return past, await self.forecast(horizon, TIMELINE_S)

    async def keys(self, topic: str) -> KeyList:
        """The largest keys of a topic."""
        return await self._keep("keys", topic, lambda engine: engine.keys(topic), KEYS_S)

    async def _keep(self, what: str, which: str, call: Callable[[Engine], T], fresh_s: float) -> T:
        async with self._lock:
            read_at, found = self._kept.get((what, which), (float("-inf"), None))
            if found is None or time.monotonic() - read_at >= fresh_s:
                found = await self._call(call)
                if len(self._kept) >= MOST_KEPT:
                    self._kept.clear()
                self._kept[what, which] = time.monotonic(), found
            return cast(T, found)

    async def _run(self) -> None:
        while not self._end.is_set() and (self._waiting or time.monotonic() - self._left_at < LINGER_S):
            await self.newest()
            await asyncio.sleep(max(0.05, self._taken_at + self.interval_s - time.monotonic()))

    async def _take(self) -> None:
        began, seen_at = time.monotonic(), datetime.now(UTC)
        try:
            snapshot = Snapshot(began, await self._call(lambda engine: engine.health()))
        except ShardqError as exc:
            self.series.trouble = str(exc)
        else:
            self.series.add(snapshot, over_s=OVER_S)
            self.columns.append(Column(seen_at, self._late(snapshot.stats)))
            self.seen_at, self.interval_s = seen_at, interval_for(snapshot.stats)
        self.taken += 1
        self._taken_at = time.monotonic()
        self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def _late(self, stats: Stats) -> dict[int, float | None]:
        late = {shard.shard: late_ms(shard, self._dispatched.get(shard.shard)) for shard in stats.shards}
        self._dispatched = {shard.shard: shard.dispatched for shard in stats.shards if shard.dispatched is not None}
        return late


def late_ms(shard: ShardStats, dispatched_before: int | None) -> float | None:
    """How late a shard is: the task that is overdue longest, or the last one dispatched since an earlier snapshot."""
    if shard.error:
        return None
    has_dispatched = dispatched_before is not None and shard.dispatched != dispatched_before
    last = (shard.late_ms or 0) if has_dispatched else 0
    return max(last, 1000 * (behind(shard.head_age) or 0))


def interval_for(stats: Stats) -> float:
    """The time between two snapshots, so that they cost no server more than its share."""
    shards = max(1, len(stats.shards))
    drawn, whole = drawn_of_a_shard(shards) * shards, whole_of_a_shard(shards) * shards
    states = (stats.scheduled, stats.held, stats.leased, stats.dead)
    ids_us = sum(count * TOLD_US if count <= whole else drawn * DRAWN_US for count in states)
    nodes = max(1, len({shard.node for shard in stats.shards}))
    cost_s = (shards * SHARD_US + ids_us) / 1e6 / nodes
    return min(MOST_S, max(LEAST_S, cost_s / SHARE))
