# For asyncio. `make fmt` generates spooling_sync.py from it.
"""The commands of an engine that has a spool: each goes to the servers, or to the file while those are away."""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from shardq.core.model.task import Outcome, Receipt, Task
from shardq.core.operation import Operation, arun
from shardq.core.producer import by_id, pushing
from shardq.core.producer.packing import RUN, Entries, Packer
from shardq.core.producer.stream import Stream, Window
from shardq.core.topology_cache import TopologyCache
from shardq.errors import PushError, ShardqError, SpoolFault, Unanswered
from shardq.features.spool import commands
from shardq.features.spool.commands import Command, now_ms, pushes
from shardq.features.spool.spool import AWAY, Spool

if True:  # ASYNC
    import asyncio

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver

T = TypeVar("T")


class AsyncSpooler:
    """Carries out the commands of one ``AsyncEngine`` that has a spool."""

    def __init__(
        self,
        spool: Spool,
        packer: Packer,
        opened: Callable[[float], Awaitable[AsyncDriver]],
        cache: Callable[[], TopologyCache],
        deadline: Callable[[], float],
        timeout: float,
    ) -> None:
        """``deadline`` returns the end of a command that begins now, after ``timeout`` seconds."""
        self._spool = spool
        self._packer = packer
        self._opened = opened
        self._cache = cache
        self._deadline = deadline
        self._timeout = timeout

    async def _add(self, commands: Sequence[Command], *, lost: ShardqError | None = None) -> bool:
        """Stores commands, see ``Spool.add``; also if the caller is cancelled meanwhile."""
        if True:  # ASYNC
            return await asyncio.shield(asyncio.wrap_future(self._spool.submit(commands, lost=lost)))
        else:
            return self._spool.add(commands, lost=lost)

    async def _sent(
        self, commands: Callable[[], Sequence[Command]], make: Callable[[TopologyCache], Operation[T]]
    ) -> T | None:
        """Carries out at the servers what these commands say. Returns None if they are in the file instead."""
        deadline = self._deadline()
        if not self._spool.away or not await self._add(commands()):
            try:
                driver = await self._opened(deadline)
                return await arun(driver, make(self._cache()), deadline=deadline)
            except AWAY as exc:
                await self._keep(commands(), exc)
        return None

    async def push_one(self, entries: Entries) -> Receipt:
        spooled = partial(pushes, entries, now_ms())
        receipt = await self._sent(spooled, lambda cache: pushing.push_one(cache, self._packer, entries))
        return Receipt.of(entries.ids[0], "spooled") if receipt is None else receipt

    async def push(self, entries: Entries, most: int) -> list[Receipt]:
        if not entries.ids:
            return []
        began_ms = now_ms()
        try:
            receipts = await self._sent(
                partial(pushes, entries, began_ms), lambda cache: pushing.push(cache, self._packer, entries, most=most)
            )
        except PushError as exc:
            return await self._keep_rest(entries, began_ms, exc)
        return [Receipt.of(id, "spooled") for id in entries.ids] if receipts is None else receipts

    async def push_iter(self, tasks: Iterator[Task], most: int) -> AsyncIterator[list[Receipt]]:
        while True:
            driver = None if self._spool.away else await self._reached()
            if driver is None:
                entries = self._packer.many(itertools.islice(tasks, RUN))
                if not entries.ids:
                    return
                yield await self.push(entries, most)
                continue
            stream = Stream(self._cache(), self._packer, tasks, most, self._timeout, halted=lambda: self._spool.away)
            async for sent, result in driver.call_all(stream.calls(), deadline=stream.deadline):
                stream.note(sent, result)
                for window in stream.finished():
                    if (receipts := await self._completed(driver, stream, window)) is not None:
                        left = time.monotonic()
                        yield receipts
                        stream.came_back(left)
            for window in stream.finished():
                if (receipts := await self._completed(driver, stream, window)) is not None:
                    left = time.monotonic()
                    yield receipts
                    stream.came_back(left)
            stream.check()
            if stream.exhausted:
                return

    async def _reached(self) -> AsyncDriver | None:
        """The driver; None if no server can be reached."""
        try:
            return await self._opened(self._deadline())
        except AWAY:
            return None

    async def _completed(self, driver: AsyncDriver, stream: Stream, window: Window) -> list[Receipt] | None:
        receipts = await arun(driver, stream.completed(window), deadline=window.deadline)
        if receipts is None:
            try:
                return await self._keep_rest(window.entries, window.taken_ms, stream.errors.pop())
            except PushError as exc:
                stream.errors.append(exc)
        return receipts

    async def cancel(self, id: str) -> Outcome:
        return await self._by_id(commands.cancel(id), lambda cache: by_id.cancel(cache, id))

    async def reschedule(self, id: str, due: int) -> Outcome:
        command = commands.reschedule(id, due, now_ms())
        return await self._by_id(command, lambda cache: by_id.reschedule(cache, id, due))

    async def _by_id(self, command: Command, make: Callable[[TopologyCache], Operation[Outcome]]) -> Outcome:
        outcome = await self._sent(lambda: [command], make)
        return Outcome.SPOOLED if outcome is None else outcome

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
