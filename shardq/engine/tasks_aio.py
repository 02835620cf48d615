# For asyncio. `make fmt` generates tasks_sync.py from it.
"""The commands on tasks: pushing them, what is done by id, and what looks at many or acts on all that match.
``AsyncEngine`` inherits them.
"""

from __future__ import annotations

import datetime as dt
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack

from shardq.core.model.checks import due_spec
from shardq.core.model.ids import shown_topic
from shardq.core.model.task import AsyncReceipt, OnConflict, Outcome, Receipt, Task, TaskInfo, refuse_unknown
from shardq.core.operation import Operation, arun
from shardq.core.producer import by_id, pushing
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import BATCH, RUN, Entries, each_task
from shardq.core.producer.stream import Stream
from shardq.core.topology_cache import TopologyCache
from shardq.engine.base import EngineBase
from shardq.engine.control import note, noted
from shardq.engine.options import check_batch, check_reason, checked_id, moved_due
from shardq.features.history import History, read_history
from shardq.features.listing import forecast, pages
from shardq.features.listing.bulk import Bulk, BulkResult, bulk_query, purge
from shardq.features.listing.forecast import Forecast, Horizon, check_horizon
from shardq.features.listing.query import Filter, Query, TaskPage, check_limit, dead_filter
from shardq.worker.named import TaskDecorator

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.features.cold.storing_aio import AsyncColdCommands
    from shardq.features.spool.spooling_aio import AsyncSpooler

Progress = Callable[[BulkResult], object]
T = TypeVar("T")


if True:  # ASYNC

    class DeadTasks(AsyncIterator[TaskInfo]):
        """The dead tasks: one by one for ``async for``, a list of all for ``await``."""

        def __init__(self, tasks: AsyncIterator[TaskInfo]) -> None:
            self._tasks = tasks

        async def __anext__(self) -> TaskInfo:
            return await anext(self._tasks)

        def __await__(self) -> Generator[Any, None, list[TaskInfo]]:
            return self._all().__await__()

        async def _all(self) -> list[TaskInfo]:
            return [task async for task in self._tasks]


class AsyncTaskCommands(EngineBase, TaskDecorator[AsyncReceipt], ABC):
    """The commands of ``AsyncEngine`` on tasks."""

    @abstractmethod
    async def _open_driver(self, deadline: float) -> AsyncDriver: ...

    @abstractmethod
    async def _push_one(self, entries: Entries) -> Receipt: ...

    @abstractmethod
    async def _push_durably(self, entries: Entries, durability: Durability, batch: int = BATCH) -> list[Receipt]: ...

    async def _carry_out(self, make: Callable[[TopologyCache], Operation[T]], id: str = "") -> T:
        """Carries out a command within the engine's timeout. ``id``: of the task that it is about."""
        deadline = self._deadline()
        driver = await self._open_driver(deadline)
        self._check_cold(id)
        return await arun(driver, make(self._map()), deadline=deadline)

    @cached_property
    def _spooler(self) -> AsyncSpooler | None:
        """Carries out commands if the engine has a spool."""
        if self._spool is None:
            return None
        from shardq.features.spool.spooling_aio import AsyncSpooler  # here: it brings sqlite3

        timeout = self._options.timeout
        return AsyncSpooler(self._spool, self._packer, self._open_driver, self._map, self._deadline, timeout)

    @property
    def _cold(self) -> AsyncColdCommands | None:
        """Carries out commands if the engine has a cold store, and no test has put all on a clock of its own."""
        return None if self._cold_store is None or self._parts.is_of_test else self._cold_commands

    @cached_property
    def _cold_commands(self) -> AsyncColdCommands:
        from shardq.engine.versions import use_cold
        from shardq.features.cold.storing_aio import AsyncColdCommands  # here: most engines have none

        assert self._cold_store is not None, "there is a cold store"
        return AsyncColdCommands(self._cold_store, self._packer, use_cold, self._open_driver, self._map, self._deadline)

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
        **unknown: Never,
    ) -> Receipt:
        """Stores one task, due after ``delay`` seconds or ``at`` an instant; returns its id when it is stored.

        A push with an ``id`` of your own is idempotent. ``on_conflict``: keep a task that has the id already, replace
        it, or reject the push (raises Conflict). ``dedup``: the seconds from the push for which the id is remembered,
        also when its task is done: a push of it then stores nothing, unless it replaces. A task not claimed by
        ``expires`` (seconds from now, or an instant) is buried instead of run late. ``window``: the task may be due at
        any time in so many seconds from its due time, so that many of one time are spread. ``throttle``: at most one
        push of the id is taken in so many seconds. ``tags``: words for ``tag=`` of ``cancel_all`` and the like.
        ``durability``: returns only when all replicas ("replicated") or the disk ("fsynced") have the task, else raises
        NotReplicated; where there are none, raises DurabilityUnavailable, with nothing stored.

        While no server can be reached, an engine with a ``spool=`` keeps a push there, unless it is a durable one: the
        receipt's outcome is then "spooled".

        >>> await engine.push({"order": 42}, delay=1800)
        >>> await engine.push({"order": 42}, topic="invoice", id="invoice-42", dedup=86_400)
        """
        if unknown:
            refuse_unknown("push", unknown)
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
        if self._cold_store is not None and self._cold is not None:  # most engines have none, and ask no further
            return await self._cold.push_one(entries, lambda: self._push_near(entries, durability))
        return await self._push_near(entries, durability)

    async def _push_near(self, entries: Entries, durability: Durability | None) -> Receipt:
        """Stores one packed task in Redis."""
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

        A batch of at most ``batch`` tasks of one shard is stored as a whole or not at all. All have the engine's
        timeout together; PushError tells which are stored, which are not, and of which that is unknown. For millions
        use ``push_iter``.

        >>> ids = await engine.push_many([shardq.Task({"n": n}, delay=60) for n in range(1000)])
        """
        if self._tracing is None:
            return await self._push_many(tasks, batch, durability)
        with self._tracing.push_many(list(each_task(tasks))) as span:
            return span.pushed(await self._push_many(span.tasks, batch, durability))

    async def _push_many(self, tasks: Iterable[Task], batch: int, durability: Durability | None) -> list[Receipt]:
        return await self._store(self._packed_many(tasks, batch), batch, durability)

    async def _store(self, entries: Entries, batch: int = BATCH, durability: Durability | None = None) -> list[Receipt]:
        """Stores packed tasks."""
        if self._cold is not None:
            receipts = await self._cold.push(entries, lambda near: self._store_near(near, batch, durability))
            if receipts is not None:
                return receipts
        return await self._store_near(entries, batch, durability)

    async def _store_near(self, entries: Entries, batch: int, durability: Durability | None) -> list[Receipt]:
        """Stores them in Redis."""
        if durability is not None:
            return await self._push_durably(entries, durability, batch)
        if self._spooler is not None:
            return await self._spooler.push(entries, batch)
        return await self._carry_out(lambda cache: pushing.push(cache, self._packer, entries, most=batch))

    async def push_iter(self, tasks: Iterable[Task], *, batch: int = BATCH) -> AsyncIterator[list[Receipt]]:
        """Stores any number of tasks in bounded memory, yielding the ids of those stored, in order.

        Tasks are packed in windows of some thousand while the servers work on earlier ones; each window has the
        engine's timeout for itself. A wrong task, and any exception that ``tasks`` raises, KeyboardInterrupt too, is
        raised after everything before its window is stored and yielded; of that window nothing is sent. After a window
        that is not stored as a whole no more input is read: what is in flight is finished and yielded, then PushError
        tells the rest.

        >>> async for ids in engine.push_iter(shardq.Task(n) for n in range(10_000)):
        ...     print(len(ids), "more are stored")
        """
        check_batch(batch)
        source = each_task(tasks)
        if self._tracing is not None:
            source = self._tracing.stream(source)
        if self._cold is not None:
            while some := list(itertools.islice(source, RUN)):
                yield await self._push_many(some, batch, None)
            return
        if self._spooler is not None:
            async for stored in self._spooler.push_iter(source, batch):
                if stored:
                    yield stored
            return
        driver = await self._open_driver(self._deadline())
        stream = Stream(self._map(), self._packer, source, batch, self._options.timeout)
        while not stream.exhausted:
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
        """Removes a task that no consumer holds: cancelled, running, gone, or unknown when an answer was lost. Spooled:
        it is tried when a server can be reached again.

        >>> if await engine.cancel(id):
        ...     print("it will not be delivered")
        """
        checked_id(id)
        if self._cold is not None and await self._cold.concerns(id):
            return await self._cold.cancel(id, lambda: self._cancel_near(id))
        return await self._cancel_near(id)

    async def _cancel_near(self, id: str) -> Outcome:
        if self._spooler is not None:
            self._check_cold(id)
            return await self._spooler.cancel(id)
        return await self._carry_out(lambda cache: by_id.cancel(cache, id), id)

    async def reschedule(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Gives a task that no consumer holds another due time: moved, running, dead, gone, or unknown when an
        answer was lost. Spooled: it is tried when a server can be reached again.

        >>> await engine.reschedule(id, delay=60)
        <Outcome.MOVED: 'moved'>
        """
        checked_id(id)
        due = moved_due(delay, at)
        if self._cold is not None and await self._cold.concerns(id):
            return await self._cold.reschedule(id, due, lambda: self._reschedule_near(id, due))
        return await self._reschedule_near(id, due)

    async def _reschedule_near(self, id: str, due: int) -> Outcome:
        if self._spooler is not None:
            self._check_cold(id)
            return await self._spooler.reschedule(id, due)
        return await self._carry_out(lambda cache: by_id.reschedule(cache, id, due), id)

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
        if self._cold is not None and await self._cold.concerns(id):
            return await self._cold.requeue(id, lambda: self._requeue_near(id, due))
        return await self._requeue_near(id, due)

    async def _requeue_near(self, id: str, due: int) -> Outcome:
        return await self._carry_out(lambda cache: by_id.requeue(cache, id, due), id)

    async def get(self, id: str, *, decode: bool = True) -> TaskInfo | None:
        """Returns the state of a task; None when it is gone. With ``decode=False`` the payload is the bytes that its
        codec made, also where that codec can't read them any more.

        >>> if info := await engine.get(id):
        ...     print(info.state, info.due, info.payload)
        >>> (await engine.get(id, decode=False)).payload
        b'{"order":42}'
        """
        checked_id(id)
        codec = self._options.codec if decode else None
        if self._cold is not None and await self._cold.concerns(id):
            info = await self._cold.get(id, codec)
            if info is not None:
                return info
        return await self._carry_out(lambda cache: by_id.get(cache, id, codec), id)

    # ---- many tasks

    async def tasks(
        self,
        topic: str | None = None,
        *,
        holder: str | None = None,
        newest: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        **filter: Unpack[Filter],
    ) -> TaskPage:
        """Returns a page of the tasks that match: a list, whose ``cursor`` is to be given with the next call, and is
        None at the end.

        The filter, which all commands on many tasks take: ``topic``; ``state``, "scheduled", "ready", "leased" or
        "dead"; ``due=(from, to)``, two instants or None, for scheduled tasks; ``tag``, for which each of the others is
        read, too; or ``everything=True``. ``holder``: tasks leased by the consumer or worker of that name. ``newest``:
        dead tasks, the latest deaths first. ``failed=True``: scheduled tasks that failed and wait for another attempt;
        ``task.reason`` tells why. Scheduled tasks come first, by due time, then ready, leased and dead ones.

        The work of a call is bounded: it looks at 1,000 tasks of a shard at most. So a page may be shorter than
        ``limit``, even empty, and only the cursor tells the end. A task that stays as it is is listed once by a walk
        through the pages, also while shards are added or removed; one that changes meanwhile may be listed twice, or
        not at all.

        >>> page = await engine.tasks("mail", state="dead")
        >>> while page.cursor is not None:
        ...     page = await engine.tasks("mail", state="dead", cursor=page.cursor)
        """
        query = Query.checked(topic, holder=holder, newest=newest, **filter)
        check_limit(limit)
        query.place(self.name, cursor)
        if self._cold is not None:
            page = await self._cold.page(self.name, query, cursor, limit, self._options.codec)
            if page is not None:
                return page
        return await self._carry_out(lambda cache: pages.task_page(cache, query, cursor, limit, self._options.codec))

    if True:  # ASYNC

        def dead(self, topic: str | None = None, **filter: Unpack[Filter]) -> DeadTasks:
            """Yields the dead tasks (dead letters) that match, the earliest deaths first, page by page as
            ``tasks(state="dead")``; returns a list of all where it is awaited. Another ``state``, and ``due``, match no
            dead task and are refused.

            >>> async for task in engine.dead("mail"):
            ...     print(task.id, task.died, task.reason)
            """
            return DeadTasks(self._dead(topic, **filter))
    else:

        def dead(self, topic: str | None = None, **filter: Unpack[Filter]) -> Iterator[TaskInfo]:
            """Yields the dead tasks (dead letters) that match, the earliest deaths first, page by page as
            ``tasks(state="dead")``. Another ``state``, and ``due``, match no dead task and are refused.

            >>> for task in engine.dead("mail"):
            ...     print(task.id, task.died, task.reason)
            """
            return self._dead(topic, **filter)

    async def _dead(self, topic: str | None, **filter: Unpack[Filter]) -> AsyncIterator[TaskInfo]:
        tag = Query.checked(topic, **dead_filter(**filter)).tag
        cursor = None
        while True:
            page = await self.tasks(topic, state="dead", tag=tag, cursor=cursor)
            for task in page:
                yield task
            if (cursor := page.cursor) is None:
                return

    async def forecast(self, horizon: Horizon = "hour") -> Forecast:
        """Counts the tasks that fall due in each minute of the next "hour", each hour of the next "day", or each day of
        the next "month" (30 days), by the servers' clock. Its time does not depend on the number of tasks.

        >>> forecast = await engine.forecast("hour")
        >>> print(forecast.overdue, max(count for start, count in forecast.buckets), forecast.later)
        """
        check_horizon(horizon)
        near = await self._carry_out(lambda cache: forecast.forecast(cache, horizon))
        return near if self._cold is None else await self._cold.forecast(near)

    async def history(self, horizon: Horizon = "hour") -> History:
        """Returns what was in each minute of the last "hour", each hour of the last "day", or each day of the last
        "month" (30 days), as dispatchers recorded it; ``forecast`` goes on where it ends.

        >>> past = await engine.history("day")
        >>> print([(point.start, point.dispatched, point.late_p99_ms) for point in past.points if point.minutes])
        """
        return await self._carry_out(lambda cache: read_history(cache, horizon))

    async def cancel_all(
        self,
        topic: str | None = None,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """Cancels the tasks that match: scheduled, ready and dead ones. ``tasks`` tells the filter; ``everything=True``
        is for all of them. ``reason``: those that died of it, or whose last attempt failed of it, as in
        ``requeue_all``. All tasks of a topic are removed faster by ``purge``.

        Each task is cancelled by its id, page by page, and ``progress`` is called after each page; what it raises ends
        the command there. Each page has the engine's timeout for itself. ``dry_run`` only counts.

        **A ``tag`` alone misses no task that was pushed before the call**, in any state, also while shards are added or
        removed. The result is true if none of them runs on, and its ``running`` tells those that do. Counts may be low
        if answers were lost.

        >>> result = await engine.cancel_all("mail", due=(None, dt.datetime.now(dt.UTC)))
        >>> print(result.done, "of", result.matched)
        >>> if not (result := await engine.cancel_all(tag="user-42")):
        ...     print(result.done, "will not be delivered; these run:", result.running)
        """
        check_reason(reason)
        query = bulk_query("cancel", topic, **filter)
        return await self._all(lambda cache: Bulk(cache, "cancel", query, reason=reason, count_only=dry_run), progress)

    async def purge(self, topic: str | None = None, **filter: Unpack[Filter]) -> int:
        """Removes the tasks that match and are not leased: scheduled, ready and dead. Returns how many. A topic, or
        ``everything=True``, is removed list by list, which is fastest; with any other filter it is what
        ``cancel_all`` does. Tasks that are pushed meanwhile may stay; those that are moved to another shard meanwhile
        are removed. Each of its requests has the engine's timeout for itself.

        >>> print(await engine.purge("mail"), "tasks removed")
        """
        query = bulk_query("cancel", topic, name="purge", **filter)
        if filter.get("failed") or any(filter.get(each) is not None for each in ("state", "due", "tag")):
            return (await self._all(lambda cache: Bulk(cache, "cancel", query))).done
        driver = await self._open_driver(self._deadline())
        cache, which = self._map(), "every topic" if topic is None else f"topic {shown_topic(topic)}"
        far = 0
        if self._cold is not None:
            bulk = Bulk(cache, "cancel", query)
            await self._cold.bulk(bulk, lambda _: None)
            far = bulk.so_far.done
        # No deadline for the whole: it goes through all tasks.
        return await arun(
            driver,
            noted(
                cache,
                purge(cache, topic, far),
                lambda done: f"{which}: purged of {done:,} task{'' if done == 1 else 's'}",
            ),
        )

    async def requeue_all(
        self,
        topic: str | None = None,
        *,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """Schedules the dead tasks that match, or all with ``everything=True``, again: now, with all their attempts.
        Those that die anew meanwhile stay dead. ``dead`` tells the filter, ``cancel_all`` the rest. ``reason``: only
        those that died of it, a reason's last line with ``#`` for each number, as pages group them.

        >>> print((await engine.requeue_all("mail")).done, "tasks run again")
        >>> print((await engine.requeue_all("mail", reason="TimeoutError: no answer in # s")).done)
        """
        check_reason(reason)
        query = bulk_query("requeue", topic, **dead_filter(**filter))
        return await self._all(lambda cache: Bulk(cache, "requeue", query, reason=reason, count_only=dry_run), progress)

    async def reschedule_all(
        self,
        topic: str | None = None,
        *,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        reason: str | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        **filter: Unpack[Filter],
    ) -> BulkResult:
        """Gives the scheduled and ready tasks that match another due time, one for all: ``delay`` seconds after the
        beginning of the command, or ``at`` an instant. ``tasks`` tells the filter, ``cancel_all`` the rest.

        >>> result = await engine.reschedule_all("mail", delay=3600)
        >>> result = await engine.reschedule_all("mail", delay=0, failed=True)    # retries now what waits for it
        """
        check_reason(reason)
        query, word = bulk_query("reschedule", topic, **filter), moved_due(delay, at)

        def make(cache: TopologyCache) -> Bulk:
            return Bulk(cache, "reschedule", query, due=word, reason=reason, count_only=dry_run)

        return await self._all(make, progress)

    async def _all(self, make: Callable[[TopologyCache], Bulk], progress: Progress | None = None) -> BulkResult:
        driver = await self._open_driver(self._deadline())
        bulk = make(self._map())
        if self._cold is not None:
            await self._cold.bulk(bulk, progress or (lambda _: None))
        while await arun(driver, bulk.following(), deadline=self._deadline()):
            if progress is not None:
                progress(bulk.so_far)
        await arun(driver, note(self._map(), bulk.words), deadline=self._deadline())
        return bulk.so_far
