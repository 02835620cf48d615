# For asyncio. `make fmt` generates chain_sync.py from it.
"""The chain of stores of an engine: Redis ← the spool ← the far store, put together once, when the engine is made.

A command is one call of the last link, which ends by its deadline. A link does what is its own, and gives the rest to
the next one. Redis is the first link of every chain (``engine/tasks_aio.py``). The link of a spool is below, and that
of the far store in its own folder.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from shardq.core.model.record import Codec
from shardq.core.model.task import Outcome, Receipt, Task, TaskInfo
from shardq.core.operation import Operation, arun
from shardq.core.producer import commands_by_id
from shardq.core.producer.commands_by_id import Verb
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import RUN, Entries, Packer
from shardq.core.producer.stream import Chunk, Stream
from shardq.core.topology_cache import TopologyCache
from shardq.errors import PushError, ShardqError, SpoolFault, Unanswered
from shardq.features.listing import forecast, pages
from shardq.features.listing.bulk import Bulk, BulkResult, purge
from shardq.features.listing.forecast import Forecast, Horizon
from shardq.features.listing.query import Query, TaskPage
from shardq.relay.row import Command, cancel, now_ms, pushes, reschedule
from shardq.relay.sending import AWAY

if True:  # ASYNC
    import asyncio

    from shardq.core.threads import begun

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.features.far.report import FarStats
    from shardq.features.spool.spool import Spool
    from shardq.relay.report import SpoolStats

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
        """Raises InvalidOption for a task in a far store that this engine was not given, as far as it knows."""
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
        """Stores tasks without end, and yields their receipts. Each chunk has the engine's timeout for itself."""
        driver = await self.opened(self.until())
        stream = Stream(self.cache(), self.packer, tasks, self.timeout)
        while not stream.exhausted:
            async for receipts in self._send(driver, stream):
                yield receipts

    async def _send(self, driver: AsyncDriver, stream: Stream) -> AsyncIterator[list[Receipt]]:
        """Sends a stream until it ends or halts, and yields the receipts of its chunks in their order."""
        async for sent, result in driver.call_all(stream, deadline=stream.deadline):
            stream.note(sent, result)
            async for receipts in self._finished(driver, stream):
                yield receipts
        async for receipts in self._finished(driver, stream):
            yield receipts
        stream.check()

    async def _finished(self, driver: AsyncDriver, stream: Stream) -> AsyncIterator[list[Receipt]]:
        for chunk in stream.finished():
            if (receipts := await self._completed(driver, stream, chunk)) is not None:
                left = time.monotonic()
                yield receipts
                stream.came_back(left)

    async def _completed(self, driver: AsyncDriver, stream: Stream, chunk: Chunk) -> list[Receipt] | None:
        """Ends a chunk. Returns None if it is not stored as a whole: the stream has its error."""
        return await arun(driver, stream.completed(chunk), deadline=chunk.deadline)

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

    async def here(self, deadline: float) -> tuple[SpoolStats | None, FarStats | None]:
        """Returns the statistics of the spool and of the far store, where there are such links."""
        return None, None

    def close(self) -> None:
        """Closes what the links have opened; the driver is the engine's. It may wait, and be used again."""


class AsyncSpoolStore(AsyncTaskStore):
    """The link of a spool: pushes, cancels and reschedules go to the file while the servers are away. A durable push is
    never spooled.
    """

    def __init__(self, near: AsyncTaskStore, spool: Spool) -> None:
        super().__init__(near)
        self._spool = spool

    async def _add(self, commands: Sequence[Command], *, lost: ShardqError | None = None) -> bool:
        """Stores commands, see ``Spool.add``; also if the caller is cancelled meanwhile."""
        if True:  # ASYNC
            return await asyncio.shield(asyncio.wrap_future(self._spool.submit(commands, lost=lost)))
        else:
            return self._spool.add(commands, lost=lost)

    async def _sent(self, commands: Callable[[], Sequence[Command]], send: Callable[[], Awaitable[T]]) -> T | None:
        """Carries these commands out at the servers, by ``send``. Returns None if they are in the file instead."""
        if not self._spool.away or not await self._add(commands()):
            try:
                return await send()
            except AWAY as exc:
                await self._keep(commands(), exc)
        return None

    async def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        if durability is not None:
            return await self.near.push_one(entries, deadline, durability)
        commands = partial(pushes, entries, now_ms())
        receipt = await self._sent(commands, lambda: self.near.push_one(entries, deadline))
        return Receipt.of(entries.ids[0], "spooled") if receipt is None else receipt

    async def push(self, entries: Entries, deadline: float, durability: Durability | None = None) -> list[Receipt]:
        if durability is not None:
            return await self.near.push(entries, deadline, durability)
        if not entries.ids:
            return []
        began_ms = now_ms()
        try:
            receipts = await self._sent(partial(pushes, entries, began_ms), lambda: self.near.push(entries, deadline))
        except PushError as exc:
            return await self._keep_rest(entries, began_ms, exc)
        return [Receipt.of(id, "spooled") for id in entries.ids] if receipts is None else receipts

    async def push_iter(self, tasks: Iterator[Task]) -> AsyncIterator[list[Receipt]]:
        while True:
            driver = None if self._spool.away else await self._reached()
            if driver is None:
                entries = self.packer.many(itertools.islice(tasks, RUN))
                if not entries.ids:
                    return
                yield await self.push(entries, self.until())
                continue
            stream = Stream(self.cache(), self.packer, tasks, self.timeout, halted=lambda: self._spool.away)
            async for receipts in self._send(driver, stream):
                yield receipts
            if stream.exhausted:
                return

    async def _reached(self) -> AsyncDriver | None:
        """Opens the engine. Returns None if no server can be reached."""
        try:
            return await self.opened(self.until())
        except AWAY:
            return None

    async def _completed(self, driver: AsyncDriver, stream: Stream, chunk: Chunk) -> list[Receipt] | None:
        receipts = await super()._completed(driver, stream, chunk)
        if receipts is None:
            try:
                return await self._keep_rest(chunk.entries, chunk.taken_ms, stream.errors.pop())
            except PushError as exc:
                stream.errors.append(exc)
        return receipts

    async def order(self, verb: Verb, id: str, due: int, deadline: float) -> Outcome:
        if verb == "requeue":
            return await self.near.order(verb, id, due, deadline)
        self.check(id)
        command = cancel(id) if verb == "cancel" else reschedule(id, due, now_ms())
        outcome = await self._sent(lambda: [command], lambda: self.near.order(verb, id, due, deadline))
        return Outcome.SPOOLED if outcome is None else outcome

    async def here(self, deadline: float) -> tuple[SpoolStats | None, FarStats | None]:
        if True:  # ASYNC
            stats = await asyncio.wrap_future(begun(self._spool.stats, "shardq-spool-stats"))
        else:
            stats = self._spool.stats()
        return stats, None

    def close(self) -> None:
        self._spool.close()

    async def _keep(self, commands: Sequence[Command], error: ShardqError) -> None:
        """Spools what met this error at the servers. Where the file does not take it, raises SpoolFault; or the error
        itself, with a note, if a server may have it.
        """
        try:
            await self._add(commands, lost=error)
        except SpoolFault as exc:
            if isinstance(error, Unanswered):
                error.add_note(f"it could not be spooled either: {exc}")
                raise error from exc
            raise exc from error

    async def _keep_rest(self, entries: Entries, began_ms: int, error: PushError) -> list[Receipt]:
        """Spools those tasks of a push that no server took. Returns the receipts of all, or raises what is left of the
        error.
        """
        known = set(entries.ids)
        away = {id for id, why in error.failed.items() if id in known and self._spool.takes(why)}
        away |= known.intersection(error.unknown)
        if not away:
            raise error
        why = next((error.failed[id] for id in away if id in error.failed), error)
        try:
            await self._add([each for each in pushes(entries, began_ms) if each.id in away], lost=why)
        except SpoolFault as exc:
            failed = {id: exc if id in away else why for id, why in error.failed.items()}
            raise PushError(ids=error.ids, stored=error.stored, failed=failed, unknown=error.unknown) from exc
        ids = [Receipt.of(id, "spooled") if id in away else id for id in error.ids]
        receipts = [id for id in ids if isinstance(id, Receipt)]
        failed = {id: why for id, why in error.failed.items() if id not in away}
        unknown = [id for id in error.unknown if id not in away]
        if failed or unknown:
            raise PushError(ids=ids, stored=receipts, failed=failed, unknown=unknown) from error
        return receipts
