# For asyncio. `make fmt` generates stores_sync.py from it.
"""The chain of stores of an engine: Redis ← the spool ← the cold store, put together once, when the engine is made.

A command is one call of the last link, which ends by its deadline. A link does what is its own, and gives the rest to
the next one. Redis is the first link of every chain (``engine/tasks_aio.py``); a feature adds one, in its own folder.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from typing import TYPE_CHECKING, TypeVar

from shardq.core.model.record import Codec
from shardq.core.model.task import Outcome, Receipt, Task, TaskInfo
from shardq.core.operation import Operation, arun
from shardq.core.producer import commands_by_id
from shardq.core.producer.commands_by_id import Verb
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import Entries, Packer
from shardq.core.producer.stream import Stream, Window
from shardq.core.topology_cache import TopologyCache
from shardq.features.listing import forecast, pages
from shardq.features.listing.bulk import Bulk, BulkResult, purge
from shardq.features.listing.forecast import Forecast, Horizon
from shardq.features.listing.query import Query, TaskPage

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.features.cold.report import ColdStats
    from shardq.features.spool.commands import SpoolStats

T = TypeVar("T")

Progress = Callable[[BulkResult], object]


class AsyncTaskStore:
    """A link of the chain. What it does not override is done in Redis, by the connections of the first link."""

    def __init__(self, near: AsyncTaskStore) -> None:
        self.near = near
        """The next link, towards Redis."""
        self.packer: Packer = near.packer
        self.timeout: float = near.timeout

    async def opened(self, deadline: float) -> AsyncDriver:
        """Opens the engine if it is not open. Returns its driver."""
        return await self.near.opened(deadline)

    def cache(self) -> TopologyCache:
        """Returns the topology cache of an engine that was opened."""
        return self.near.cache()

    def check(self, id: str) -> None:
        """Raises InvalidOption for a task in a cold store that this engine was not given, as far as it knows."""
        self.near.check(id)

    def check_hooked(self, topics: Collection[str]) -> None:
        """Raises InvalidOption for a topic of tasks with URLs that goes elsewhere, as far as this process knows."""
        self.near.check_hooked(topics)

    def until(self) -> float:
        """The end of a step that begins now and has the engine's timeout for itself."""
        return time.monotonic() + self.timeout

    async def run(self, make: Callable[[TopologyCache], Operation[T]], deadline: float) -> T:
        """Carries out an operation in Redis."""
        driver = await self.opened(deadline)
        return await arun(driver, make(self.cache()), deadline=deadline)

    async def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        """Stores one packed task. Raises its own error as it is."""
        return await self.near.push_one(entries, deadline, durability)

    async def push(self, entries: Entries, deadline: float, durability: Durability | None = None) -> list[Receipt]:
        """Stores packed tasks. Raises PushError if not all of them are stored."""
        return await self.near.push(entries, deadline, durability)

    async def push_iter(self, tasks: Iterator[Task]) -> AsyncIterator[list[Receipt]]:
        """Stores tasks without end, and yields their receipts. Each window has the engine's timeout for itself."""
        driver = await self.opened(self.until())
        stream = Stream(self.cache(), self.packer, tasks, self.timeout)
        while not stream.exhausted:
            async for receipts in self._send(driver, stream):
                yield receipts

    async def _send(self, driver: AsyncDriver, stream: Stream) -> AsyncIterator[list[Receipt]]:
        """Sends a stream until it ends or halts, and yields the receipts of its windows in their order."""
        async for sent, result in driver.call_all(stream.calls(), deadline=stream.deadline):
            stream.note(sent, result)
            async for receipts in self._finished(driver, stream):
                yield receipts
        async for receipts in self._finished(driver, stream):
            yield receipts
        stream.check()

    async def _finished(self, driver: AsyncDriver, stream: Stream) -> AsyncIterator[list[Receipt]]:
        for window in stream.finished():
            if (receipts := await self._completed(driver, stream, window)) is not None:
                left = time.monotonic()
                yield receipts
                stream.came_back(left)

    async def _completed(self, driver: AsyncDriver, stream: Stream, window: Window) -> list[Receipt] | None:
        """Ends a window. Returns None if it is not stored as a whole: the stream has its error."""
        return await arun(driver, stream.completed(window), deadline=window.deadline)

    async def order(self, verb: Verb, id: str, due: int, deadline: float) -> Outcome:
        """Cancels, reschedules or requeues one task. A cancel does not read ``due``, which is a due word."""
        await self.opened(deadline)
        self.check(id)
        return await self.run(lambda cache: commands_by_id.order(cache, verb, id, due), deadline)

    async def get(self, id: str, codec: Codec | None, deadline: float) -> TaskInfo | None:
        """Returns a task, with its payload as bytes without a codec; None if it is gone."""
        await self.opened(deadline)
        self.check(id)
        return await self.run(lambda cache: commands_by_id.get(cache, id, codec), deadline)

    async def page(
        self, query: Query, cursor: str | None, limit: int, codec: Codec | None, deadline: float
    ) -> TaskPage:
        """Returns a page of the tasks that match, with their payloads as bytes without a codec."""
        return await self.run(lambda cache: pages.task_page(cache, query, cursor, limit, codec), deadline)

    async def forecast(self, horizon: Horizon, deadline: float) -> Forecast:
        """Counts tasks by the time at which they fall due."""
        return await self.run(lambda cache: forecast.forecast(cache, horizon), deadline)

    async def bulk(self, bulk: Bulk, progress: Progress) -> None:
        """Does a command on all tasks that match. ``bulk`` counts for all links; each calls ``progress`` after each of
        its pages, which has the engine's timeout for itself.
        """
        driver = await self.opened(self.until())
        while await arun(driver, bulk.following(), deadline=self.until()):
            progress(bulk.so_far)

    async def purge(self, bulk: Bulk) -> int:
        """Removes all tasks that match. Returns how many, with those that ``bulk`` has counted."""
        driver = await self.opened(self.until())
        # No deadline for the whole: it goes through all tasks.
        return await arun(driver, purge(self.cache(), bulk.asked.topic, bulk.so_far.done))

    async def here(self, deadline: float) -> tuple[SpoolStats | None, ColdStats | None]:
        """Returns the statistics of the spool and of the cold store, where there are such links."""
        return None, None

    def close(self) -> None:
        """Closes what the links have opened; the driver is the engine's. It may wait, and be used again."""
