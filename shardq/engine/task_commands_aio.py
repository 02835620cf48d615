# For asyncio. `make fmt` generates task_commands_sync.py from it.
"""The commands on tasks: pushing them, and what is done by id. ``AsyncEngine`` inherits them."""

from __future__ import annotations

import datetime as dt
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from shardq.core.model.checks import check_tag, due_spec
from shardq.core.model.task import AsyncReceipt, CancelledTag, OnConflict, Outcome, Receipt, Task, TaskInfo
from shardq.core.operation import Operation, arun
from shardq.core.producer import by_id, pushing
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import BATCH, Entries, each_task
from shardq.core.producer.stream import Stream
from shardq.core.topology_cache import TopologyCache
from shardq.engine.arguments import check_batch, checked_id, moved_due
from shardq.engine.base import EngineBase
from shardq.engine.tags import TagPages
from shardq.worker.decorator import TaskDecorator

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.features.spool.spooling_aio import AsyncSpooler

T = TypeVar("T")


class AsyncTaskCommands(EngineBase, TaskDecorator[AsyncReceipt], ABC):
    """The commands of ``AsyncEngine`` on tasks."""

    @abstractmethod
    async def _open_driver(self, deadline: float) -> AsyncDriver: ...

    async def _carry_out(self, make: Callable[[TopologyCache], Operation[T]]) -> T:
        """Carries out a command within the engine's timeout."""
        deadline = self._deadline()
        driver = await self._open_driver(deadline)
        return await arun(driver, make(self._map()), deadline=deadline)

    @abstractmethod
    async def _push_one(self, entries: Entries) -> Receipt: ...

    @abstractmethod
    async def _push_durably(self, entries: Entries, durability: Durability, batch: int = BATCH) -> list[Receipt]: ...

    @cached_property
    def _spooler(self) -> AsyncSpooler | None:
        """Carries out commands if the engine has a spool."""
        if self._spool is None:
            return None
        from shardq.features.spool.spooling_aio import AsyncSpooler  # here: it brings sqlite3

        timeout = self.options.timeout
        return AsyncSpooler(self._spool, self._packer, self._open_driver, self._map, self._deadline, timeout)

    # ---- pushing

    async def push(
        self,
        payload: Any,
        *,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        topic: str = "",
        id: str | None = None,
        on_conflict: OnConflict = "keep",
        dedup: float | dt.timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        expires: float | dt.timedelta | dt.datetime | None = None,
        window: float | dt.timedelta | None = None,
        throttle: float | dt.timedelta | None = None,
        tags: Sequence[str] | None = None,
        durability: Durability | None = None,
    ) -> Receipt:
        """Stores one task, due after ``delay`` seconds or ``at`` an instant; returns its id when it is stored.

        A push with an ``id`` of your own is idempotent. ``on_conflict`` says what becomes of a task that has the id
        already (keep it, replace it, or reject: raises Conflict), and ``dedup`` for how many seconds from the push the
        id is remembered, also when its task is done: a push of it then stores nothing, unless it replaces. A task not
        claimed by ``expires`` (seconds from now, or an instant) is buried instead of run late. ``window``: any time in
        so many seconds from the due time is fine, so that many tasks of one time are spread. ``throttle``: at most one
        push of the id is taken in so many seconds. ``tags``: what ``cancel_tag`` finds it by. ``durability``: returns
        only when all replicas ("replicated") or the disk ("fsynced") have the task, else raises NotReplicated; where
        there are none, raises DurabilityUnavailable, with nothing stored.

        An engine with a ``spool=`` keeps the push there while no server can be reached, unless it is a durable one: the
        receipt's outcome is then "spooled".

        >>> await engine.push({"order": 42}, delay=1800)
        >>> await engine.push({"order": 42}, topic="invoice", id="invoice-42", dedup=86_400)
        >>> await engine.push({"user": 42}, delay=3600, window=600, tags=["user-42"])
        >>> await engine.push("there is news", id="news-42", throttle=300)
        """
        task = Task(
            payload,
            delay=delay,
            at=at,
            topic=topic,
            id=id,
            on_conflict=on_conflict,
            dedup=dedup,
            headers=headers,
            max_attempts=max_attempts,
            expires=expires,
            window=window,
            throttle=throttle,
            tags=tags,
        )
        if self._tracing is None:
            return await self._push(task, durability)
        with self._tracing.push(task) as span:
            [receipt] = span.pushed([await self._push(span.tasks[0], durability)])
        return receipt

    async def _push(self, task: Task, durability: Durability | None) -> Receipt:
        entries = self._packer.one(task)
        if durability is not None:
            [receipt] = await self._push_durably(entries, durability)
            return receipt
        if self._spooler is not None:
            return await self._spooler.push_one(entries)
        return await self._push_one(entries)

    async def push_many(
        self, tasks: Iterable[Task], *, batch: int = BATCH, durability: Durability | None = None
    ) -> list[Receipt]:
        """Stores many tasks; returns their ids in order. All are checked before the first is sent.

        A batch of at most ``batch`` tasks of one shard is stored as a whole or not at all. Raises PushError when some
        tasks are not stored. All have the engine's timeout together, from when they are checked: at its end the error
        tells which are stored, which are not, and of which that is unknown. For millions use ``push_iter``.

        >>> ids = await engine.push_many([shardq.Task({"n": n}, delay=60) for n in range(1000)])
        """
        if self._tracing is None:
            return await self._push_many(tasks, batch, durability)
        with self._tracing.push_many(list(each_task(tasks))) as span:
            return span.pushed(await self._push_many(span.tasks, batch, durability))

    async def _push_many(self, tasks: Iterable[Task], batch: int, durability: Durability | None) -> list[Receipt]:
        entries = self._packed_many(tasks, batch)
        if durability is not None:
            return await self._push_durably(entries, durability, batch)
        if self._spooler is not None:
            return await self._spooler.push(entries, batch)
        return await self._carry_out(lambda cache: pushing.push(cache, self._packer, entries, most=batch))

    async def push_iter(self, tasks: Iterable[Task], *, batch: int = BATCH) -> AsyncIterator[list[Receipt]]:
        """Stores any number of tasks in bounded memory, yielding the ids of those stored, in order.

        Tasks are packed while the servers work on earlier ones. A wrong task raises its error after everything before
        its window of some thousand tasks is stored and yielded; of that window nothing is sent. So does any exception
        that ``tasks`` itself raises, KeyboardInterrupt too: what was yielded is stored, and nothing else. After a
        window that is not stored as a whole no more input is read: what is in flight is finished and yielded, then
        PushError tells the rest. Each window has the engine's timeout for itself, in which the caller's own work does
        not count.

        >>> async for ids in engine.push_iter(shardq.Task(n) for n in range(10_000)):
        ...     print(len(ids), "more are stored")
        """
        check_batch(batch)
        source = each_task(tasks)
        if self._tracing is not None:
            source = self._tracing.stream(source)
        if self._spooler is not None:
            async for stored in self._spooler.push_iter(source, batch):
                if stored:
                    yield stored
            return
        driver = await self._open_driver(self._deadline())
        stream = Stream(self._map(), self._packer, source, batch, self.options.timeout)
        async for sent, result in driver.call_all(stream.calls(), deadline=stream.deadline):
            stream.note(sent, result)
            for window in stream.finished():
                if (receipts := await arun(driver, stream.completed(window), deadline=window.deadline)) is not None:
                    left = time.monotonic()
                    yield receipts
                    stream.came_back(left)
        for window in stream.finished():
            if (receipts := await arun(driver, stream.completed(window), deadline=window.deadline)) is not None:
                left = time.monotonic()
                yield receipts
                stream.came_back(left)
        stream.check()

    def _push_task(self) -> Callable[..., AsyncReceipt]:
        return self.push

    # ---- by id

    async def cancel(self, id: str) -> Outcome:
        """Removes a task that nobody holds: cancelled, running, gone, or unknown when an answer was lost. Spooled:
        it is tried when a server can be reached again.

        >>> if await engine.cancel(id):
        ...     print("it will not be delivered")
        """
        checked_id(id)
        if self._spooler is not None:
            return await self._spooler.cancel(id)
        return await self._carry_out(lambda cache: by_id.cancel(cache, id))

    async def cancel_tag(self, tag: str, *, progress: Callable[[CancelledTag], object] | None = None) -> CancelledTag:
        """Removes all tasks with this tag that nobody holds: scheduled, ready and dead. The result is true if none of
        them runs on, and tells those that do. ``progress`` is called with how far it came, many times a second.

        No task that was pushed before the call is missed, also while shards are added or removed; one that is pushed
        meanwhile may stay. There is no index of tags, so this looks at every task of the engine: its time is that of
        all pending tasks, not of those with the tag. Each page has the engine's timeout for itself. Counts may be low
        if answers were lost.

        >>> if not (done := await engine.cancel_tag("user-42")):
        ...     print(done.cancelled, "will not be delivered; these run:", done.running)
        """
        check_tag(tag)
        driver = await self._open_driver(self._deadline())
        pages = TagPages(self._map(), tag)
        while await arun(driver, pages.following(), deadline=self._deadline()):
            if progress is not None:
                progress(pages.so_far)
        return pages.so_far

    async def reschedule(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Gives a task that nobody holds another due time: moved, running, dead, gone, or unknown when an answer was
        lost. Spooled: it is tried when a server can be reached again.

        >>> await engine.reschedule(id, delay=60)
        <Outcome.MOVED: 'moved'>
        """
        checked_id(id)
        due = moved_due(delay, at)
        if self._spooler is not None:
            return await self._spooler.reschedule(id, due)
        return await self._carry_out(lambda cache: by_id.reschedule(cache, id, due))

    async def requeue(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Schedules a dead task again, with all its attempts: requeued, what it is instead, or unknown when an answer
        was lost.

        >>> if not (outcome := await engine.requeue(id)):
        ...     print(f"not dead, but {outcome}")
        """
        checked_id(id)
        due = due_spec(delay, at)
        return await self._carry_out(lambda cache: by_id.requeue(cache, id, due))

    async def get(self, id: str, *, decode: bool = True) -> TaskInfo | None:
        """Returns the state of a task; None when it is gone. With ``decode=False`` the payload is the bytes that its
        codec made, also where that codec can't read them any more.

        >>> if info := await engine.get(id):
        ...     print(info.state, info.due, info.payload)
        >>> (await engine.get(id, decode=False)).payload
        b'{"order":42}'
        """
        checked_id(id)
        return await self._carry_out(lambda cache: by_id.get(cache, id, self.options.codec if decode else None))
