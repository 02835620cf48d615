# Generated from stores_aio.py by `make fmt`: change that one.
"""The chain of stores of an engine: Redis ← the spool ← the cold store, put together once, when the engine is made.

A command is one call of the last link, which ends by its deadline. A link does what is its own, and gives the rest to
the next one. Redis is the first link of every chain (``engine/tasks_sync.py``); a feature adds one, in its own folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, TypeVar

from shardq.core.model.record import Codec
from shardq.core.model.task import Outcome, Receipt, Task, TaskInfo
from shardq.core.operation import Operation, run
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
    from shardq.core.drivers.sync import Driver
    from shardq.features.cold.report import ColdStats
    from shardq.features.spool.commands import SpoolStats

T = TypeVar("T")

Progress = Callable[[BulkResult], object]


class TaskStore:
    """A link of the chain. What it does not override is done in Redis, by the connections of the first link."""

    def __init__(self, near: TaskStore) -> None:
        self.near = near
        """The next link, towards Redis."""
        self.packer: Packer = near.packer
        self.timeout: float = near.timeout

    def opened(self, deadline: float) -> Driver:
        """Opens the engine if it is not open. Returns its driver."""
        return self.near.opened(deadline)

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

    def run(self, make: Callable[[TopologyCache], Operation[T]], deadline: float) -> T:
        """Carries out an operation in Redis."""
        driver = self.opened(deadline)
        return run(driver, make(self.cache()), deadline=deadline)

    def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        """Stores one packed task. Raises its own error as it is."""
        return self.near.push_one(entries, deadline, durability)

    def push(self, entries: Entries, deadline: float, durability: Durability | None = None) -> list[Receipt]:
        """Stores packed tasks. Raises PushError if not all of them are stored."""
        return self.near.push(entries, deadline, durability)

    def push_iter(self, tasks: Iterator[Task]) -> Iterator[list[Receipt]]:
        """Stores tasks without end, and yields their receipts. Each window has the engine's timeout for itself."""
        driver = self.opened(self.until())
        stream = Stream(self.cache(), self.packer, tasks, self.timeout)
        while not stream.exhausted:
            for receipts in self._send(driver, stream):
                yield receipts

    def _send(self, driver: Driver, stream: Stream) -> Iterator[list[Receipt]]:
        """Sends a stream until it ends or halts, and yields the receipts of its windows in their order."""
        for sent, result in driver.call_all(stream.calls(), deadline=stream.deadline):
            stream.note(sent, result)
            for receipts in self._finished(driver, stream):
                yield receipts
        for receipts in self._finished(driver, stream):
            yield receipts
        stream.check()

    def _finished(self, driver: Driver, stream: Stream) -> Iterator[list[Receipt]]:
        for window in stream.finished():
            if (receipts := self._completed(driver, stream, window)) is not None:
                left = time.monotonic()
                yield receipts
                stream.came_back(left)

    def _completed(self, driver: Driver, stream: Stream, window: Window) -> list[Receipt] | None:
        """Ends a window. Returns None if it is not stored as a whole: the stream has its error."""
        return run(driver, stream.completed(window), deadline=window.deadline)

    def order(self, verb: Verb, id: str, due: int, deadline: float) -> Outcome:
        """Cancels, reschedules or requeues one task. A cancel does not read ``due``, which is a due word."""
        self.opened(deadline)
        self.check(id)
        return self.run(lambda cache: commands_by_id.order(cache, verb, id, due), deadline)

    def get(self, id: str, codec: Codec | None, deadline: float) -> TaskInfo | None:
        """Returns a task, with its payload as bytes without a codec; None if it is gone."""
        self.opened(deadline)
        self.check(id)
        return self.run(lambda cache: commands_by_id.get(cache, id, codec), deadline)

    def page(self, query: Query, cursor: str | None, limit: int, codec: Codec | None, deadline: float) -> TaskPage:
        """Returns a page of the tasks that match, with their payloads as bytes without a codec."""
        return self.run(lambda cache: pages.task_page(cache, query, cursor, limit, codec), deadline)

    def forecast(self, horizon: Horizon, deadline: float) -> Forecast:
        """Counts tasks by the time at which they fall due."""
        return self.run(lambda cache: forecast.forecast(cache, horizon), deadline)

    def bulk(self, bulk: Bulk, progress: Progress) -> None:
        """Does a command on all tasks that match. ``bulk`` counts for all links; each calls ``progress`` after each of
        its pages, which has the engine's timeout for itself.
        """
        driver = self.opened(self.until())
        while run(driver, bulk.following(), deadline=self.until()):
            progress(bulk.so_far)

    def purge(self, bulk: Bulk) -> int:
        """Removes all tasks that match. Returns how many, with those that ``bulk`` has counted."""
        driver = self.opened(self.until())
        # No deadline for the whole: it goes through all tasks.
        return run(driver, purge(self.cache(), bulk.asked.topic, bulk.so_far.done))

    def here(self, deadline: float) -> tuple[SpoolStats | None, ColdStats | None]:
        """Returns the statistics of the spool and of the cold store, where there are such links."""
        return None, None

    def close(self) -> None:
        """Closes what the links have opened; the driver is the engine's. It may wait, and be used again."""
