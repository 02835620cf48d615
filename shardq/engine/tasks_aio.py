# For asyncio. `make fmt` generates tasks_sync.py from it.
"""The commands on tasks: pushing them, what is done by id, and what looks at many or acts on all that match. Each
checks its arguments, and is one call of the engine's chain of stores (``relay/chain_aio.py``), whose first link is
here.
``AsyncEngine`` inherits them.
"""

from __future__ import annotations

import datetime as dt
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never, TypeVar, Unpack

from shardq.core.model.checks import OnConflict, due_spec
from shardq.core.model.ids import shown_topic
from shardq.core.model.record import Codec
from shardq.core.model.task import AsyncReceipt, Outcome, Receipt, Task, TaskInfo, refuse_unknown
from shardq.core.operation import Operation
from shardq.core.producer import pushing
from shardq.core.producer.commands_by_id import Verb
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import Entries, Packer, each_task
from shardq.core.topology_cache import TopologyCache
from shardq.engine.base import EngineBase
from shardq.engine.engine_wide import link_far, note
from shardq.engine.options import check_reason, checked_id, moved_due
from shardq.engine.wiring import Tracing
from shardq.errors import MissingLink
from shardq.features.history import History, read_history
from shardq.features.listing import ends
from shardq.features.listing.bulk import Bulk, BulkResult, bulk_query
from shardq.features.listing.forecast import Forecast, Horizon, check_horizon
from shardq.features.listing.query import Filter, Query, TaskPage, check_limit, dead_filter
from shardq.relay.chain_aio import AsyncSpoolStore, AsyncTaskStore, Progress
from shardq.worker.named import TaskDecorator

if True:  # ASYNC
    from shardq.core.producer.durable import DURABILITIES
    from shardq.core.producer.gathering import Gatherer
    from shardq.core.producer.shared_barriers import Outcomes, SharedBarriers
else:
    from shardq.core.operation import run

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver

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


class AsyncRedisStore(AsyncTaskStore):
    """The first link of the chain: Redis, by the driver of the engine."""

    def __init__(self, engine: AsyncTaskCommands) -> None:
        self.packer: Packer = engine._packer
        self.timeout: float = engine._options.timeout
        self._engine = engine
        self.driver: AsyncDriver | None = None
        """None until the engine is open."""
        if True:  # ASYNC
            self.gatherer: Gatherer
            """The pushes that go by the driver."""
            self.barriers: Mapping[Durability, SharedBarriers] = {}
            """Durable pushes, by what they wait for."""

    def use(self, driver: AsyncDriver) -> None:
        """Sends commands by this driver from now on."""
        if True:  # ASYNC
            self.gatherer = Gatherer(driver, self.cache(), self.packer)
            together = self._engine._push_together
            self.barriers = {each: SharedBarriers(each, together) for each in DURABILITIES}
        self.driver = driver

    async def opened(self, deadline: float) -> AsyncDriver:
        return self.driver or await self._engine._open_driver(deadline)

    def cache(self) -> TopologyCache:
        return self._engine._map()

    def check(self, id: str) -> None:
        if self._lacks_far:
            from shardq.features.far.rows import LINK, is_made  # here: most engines have none

            if is_made(id):
                raise MissingLink(LINK, f"what becomes of the task {id}")

    @property
    def _lacks_far(self) -> bool:
        """True for an engine with tasks in a far store, which was not given here."""
        cache = self._engine._cache
        return cache is not None and bool(cache.topology.links) and self._engine._far is None

    async def _see_all(self, deadline: float, asked: Query) -> None:
        """Raises MissingLink if tasks that may match wait where this engine does not look."""
        await self.opened(deadline)
        if self._lacks_far and "scheduled" in asked.states and not asked.failed:
            from shardq.features.far.rows import LINK

            raise MissingLink(LINK, "which tasks wait")

    async def page(
        self, query: Query, cursor: str | None, limit: int, codec: Codec | None, deadline: float
    ) -> TaskPage:
        await self._see_all(deadline, query)
        return await super().page(query, cursor, limit, codec, deadline)

    async def forecast(self, horizon: Horizon, deadline: float) -> Forecast:
        await self._see_all(deadline, Query(("scheduled",)))
        return await super().forecast(horizon, deadline)

    async def bulk(self, bulk: Bulk, progress: Progress) -> None:
        if bulk.verb != "requeue" and bulk.reason is None:
            await self._see_all(self.until(), bulk.asked)
        await super().bulk(bulk, progress)

    async def purge(self, bulk: Bulk) -> int:
        await self._see_all(self.until(), bulk.asked)
        return await super().purge(bulk)

    def check_hooked(self, topics: Collection[str]) -> None:
        cache = self._engine._cache
        if cache is not None:
            pushing.check_hooked(cache, topics)

    async def push_one(self, entries: Entries, deadline: float, durability: Durability | None = None) -> Receipt:
        if durability is not None:
            if True:  # ASYNC
                if not entries.hooked and durability in DURABILITIES:
                    await self.opened(deadline)
                    return await self.barriers[durability].push(entries, deadline)
            [receipt] = await self._engine._push_durably(entries, deadline, durability)
            return receipt
        if True:  # ASYNC
            if self.driver is None:
                await self.opened(deadline)
                entries = self.packer.stamped(entries)
            return await self.gatherer.push(entries, deadline)
        else:
            driver, cache = self.driver, self._engine._cache
            if driver is None or cache is None:
                driver, cache = self.opened(deadline), self.cache()
                entries = self.packer.stamped(entries)
            return run(driver, pushing.push_one(cache, self.packer, entries), deadline=deadline)

    async def push(self, entries: Entries, deadline: float, durability: Durability | None = None) -> list[Receipt]:
        if durability is not None:
            return await self._engine._push_durably(entries, deadline, durability)
        if self.driver is None:
            await self.opened(deadline)
            entries = self.packer.stamped(entries)
        return await self.run(lambda cache: pushing.push(cache, self.packer, entries), deadline)


class AsyncPusher:
    """Packs tasks for the chain of stores, which knows packed ones only. It traces nothing."""

    def __init__(self, store: AsyncTaskStore) -> None:
        self._packer, self._timeout, self._store = store.packer, store.timeout, store

    async def push(self, task: Task, durability: Durability | None) -> Receipt:
        return await self._store.push_one(self._packer.one(task), time.monotonic() + self._timeout, durability)

    async def push_many(self, tasks: Iterable[Task], durability: Durability | None) -> list[Receipt]:
        return await self._store.push(self._packer.many(tasks), time.monotonic() + self._timeout, durability)

    def push_iter(self, tasks: Iterator[Task]) -> AsyncIterator[list[Receipt]]:
        return self._store.push_iter(tasks)

    def packed(self, task: Task) -> Entries:
        """Packs a task that a buffer stores later."""
        entries = self._packer.one(task)
        if entries.hooked:
            self._store.check_hooked(entries.hooked)
        return entries


class AsyncTracedPusher(AsyncPusher):
    """Packs tasks, with a span around each push."""

    def __init__(self, store: AsyncTaskStore, tracing: Tracing) -> None:
        super().__init__(store)
        self._tracing = tracing

    async def push(self, task: Task, durability: Durability | None) -> Receipt:
        with self._tracing.push(task) as span:
            [receipt] = span.pushed([await super().push(span.tasks[0], durability)])
        return receipt

    async def push_many(self, tasks: Iterable[Task], durability: Durability | None) -> list[Receipt]:
        with self._tracing.push_many(list(each_task(tasks))) as span:
            return span.pushed(await super().push_many(span.tasks, durability))

    def push_iter(self, tasks: Iterator[Task]) -> AsyncIterator[list[Receipt]]:
        return super().push_iter(self._tracing.stream(tasks))

    def packed(self, task: Task) -> Entries:
        return super().packed(self._tracing.create(task))


class AsyncTaskCommands(EngineBase, TaskDecorator[AsyncReceipt], ABC):
    """The commands of ``AsyncEngine`` on tasks."""

    @abstractmethod
    async def _open_driver(self, deadline: float) -> AsyncDriver: ...

    if True:  # ASYNC

        @abstractmethod
        async def _push_together(self, entries: Entries, deadline: float, durability: Durability) -> Outcomes: ...

    @abstractmethod
    async def _push_durably(self, entries: Entries, deadline: float, durability: Durability) -> list[Receipt]: ...

    def _forked(self) -> None:
        super()._forked()
        self._chain()

    def _chain(self) -> None:
        """Puts the chain of stores together. All that it has open belongs to this process."""
        far = self._far
        self._redis = AsyncRedisStore(self)
        self._store: AsyncTaskStore = self._redis
        if self._spool is not None:
            self._store = AsyncSpoolStore(self._store, self._spool)
        if far is not None and not self._factory.is_of_test:
            from shardq.features.far.storing_aio import AsyncFarStore  # here: most engines have none

            self._store = AsyncFarStore(self._store, far, link_far, lambda: self._running.loader())
        self._trace_by(self._tracing)

    def _trace_by(self, tracing: Tracing | None) -> None:
        self._tracing = tracing
        self._pusher = AsyncPusher(self._store) if tracing is None else AsyncTracedPusher(self._store, tracing)

    async def _carry_out(self, make: Callable[[TopologyCache], Operation[T]]) -> T:
        """Carries out an operation within the engine's timeout."""
        return await self._redis.run(make, self._deadline())

    # ---- pushing

    async def push(
        self,
        payload: Any,
        *,
        delay: float | dt.timedelta | None = None,
        at: float | dt.datetime | None = None,
        topic: str = "",
        key: str | None = None,
        id: str | None = None,
        on_conflict: OnConflict = "keep",
        dedup: float | dt.timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        max_attempts: int | None = None,
        expires: float | dt.timedelta | dt.datetime | None = None,
        window: float | dt.timedelta | None = None,
        throttle: float | dt.timedelta | None = None,
        tags: Sequence[str] | None = None,
        url: str | None = None,
        durability: Durability | None = None,
        **unknown: Never,
    ) -> Receipt:
        """Stores one task, due after ``delay`` seconds or ``at`` an instant; returns its id when it is stored.

        ``key``: tasks of one key, such as a customer, are given out one at a time, in due order, unless
        ``limit(topic, per_key=…)`` allows more; the full id is TOPIC/KEY/ID then.

        A push with an ``id`` of your own is idempotent. The full id includes the topic: TOPIC/ID. ``on_conflict``: keep
        a task that has the id already, replace it, or reject the push (raises Conflict). ``dedup``: remember the id for
        so many seconds from the push, even if its task is done; pushes of it store nothing, unless they replace.
        ``throttle``: take at most one push of the id in so many seconds. ``expires`` (seconds from now, or an instant):
        if no worker claims the task by then, it is dead instead of run late. ``window``: the task may be due at any
        time in so many seconds from its due time, which spreads tasks of one time. ``tags``: words for ``tag=`` of
        ``cancel_all`` and the like. ``url``: the task is a webhook, posted there; without a ``key`` it has one for this
        URL. ``durability``: returns only when all replicas ("replicated") or the disk
        ("fsynced") have the task, otherwise raises NotReplicated; without replicas or disk, raises
        DurabilityUnavailable and stores nothing.

        While no server can be reached, an engine with a ``spool=`` keeps the push in its file, unless it is durable:
        the receipt's outcome is "spooled" then.

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
            key=key,
            id=id,
            on_conflict=on_conflict,
            dedup=dedup,
            headers=headers,
            max_attempts=max_attempts,
            expires=expires,
            window=window,
            throttle=throttle,
            tags=tags,
            url=url,
        )
        return await self._pusher.push(task, durability)

    async def push_many(self, tasks: Iterable[Task], *, durability: Durability | None = None) -> list[Receipt]:
        """Stores many tasks; returns their ids in order. All are checked before the first is sent.

        Tasks of one shard are stored up to 500 at a time, all of them or none. The call has the engine's timeout;
        PushError says which tasks are stored, which are not, and for which that is unknown. For millions use
        ``push_iter``.

        >>> ids = await engine.push_many([shardq.Task({"n": n}, delay=60) for n in range(1000)])
        """
        return await self._pusher.push_many(tasks, durability)

    async def push_iter(self, tasks: Iterable[Task]) -> AsyncIterator[list[Receipt]]:
        """Stores any number of tasks in bounded memory, yielding the ids of those stored, in order.

        Tasks are packed in chunks of some thousand while the servers work on earlier ones; each chunk has the
        engine's timeout for itself. If a task is wrong, or ``tasks`` raises (KeyboardInterrupt, too), the chunks
        before are stored and yielded, nothing of this chunk is sent, and the exception is raised. If a chunk is not
        stored as a whole, no more input is read: the chunks in flight are finished and yielded, then PushError tells
        the rest.

        >>> async for ids in engine.push_iter(shardq.Task(n) for n in range(10_000)):
        ...     print(len(ids), "more are stored")
        """
        async for receipts in self._pusher.push_iter(each_task(tasks)):
            yield receipts

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
        return await self._store.order("cancel", id, 0, self._deadline())

    async def reschedule(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Gives a task that no consumer holds another due time: moved, running, dead, gone, or unknown when an
        answer was lost. Spooled: it is tried when a server can be reached again.

        >>> await engine.reschedule(id, delay=60)
        <Outcome.MOVED: 'moved'>
        """
        checked_id(id)
        return await self._store.order("reschedule", id, moved_due(delay, at), self._deadline())

    async def requeue(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Schedules a dead task again, with all its attempts: requeued, what it is instead, or unknown when an answer
        was lost.

        >>> if not (outcome := await engine.requeue(id)):
        ...     print(f"not dead, but {outcome}")
        """
        checked_id(id)
        return await self._store.order("requeue", id, due_spec(delay, at), self._deadline())

    async def get(self, id: str, *, decode: bool = True, ended: bool = False) -> TaskInfo | None:
        """Returns the state of a task; None if it is gone. With ``decode=False`` the payload is the bytes that its
        codec made, even if that codec can't read them any more.

        ``ended=True``: of a task that is done or cancelled it returns what is kept of that: when, by whom, and after
        how many attempts, without the payload. An engine keeps it for the time that ``configure(done_age=…)`` says.

        >>> if info := await engine.get(id):
        ...     print(info.state, info.due, info.payload)
        >>> (await engine.get(id, decode=False)).payload
        b'{"order":42}'
        >>> if (info := await engine.get(id, ended=True)) and info.state == "done":
        ...     print(info.ended, info.holder, info.seconds)
        """
        checked_id(id)
        deadline = self._deadline()
        found = await self._store.get(id, self._options.codec if decode else None, deadline)
        if found is None and ended:
            return await self._redis.run(lambda cache: ends.find(cache, id), deadline)
        return found

    # ---- many tasks

    async def tasks(
        self,
        topic: str | None = None,
        *,
        holder: str | None = None,
        newest: bool = False,
        limit: int = 100,
        cursor: str | None = None,
        decode: bool = True,
        **filter: Unpack[Filter],
    ) -> TaskPage:
        """Returns a page of the tasks that match: a list with a ``cursor``, to give with the next call. The cursor is
        None at the end.

        All commands on many tasks take this filter: ``topic``; ``key``; ``state``, "scheduled", "held" (due, and
        waiting for its key), "ready", "leased" or "dead"; ``due=(from, to)``, two instants or None, for scheduled and
        held tasks; ``tag``, for which all other tasks are read, too; or ``everything=True``. ``holder``: tasks leased
        by the consumer or worker of that name. ``newest``: dead tasks, the latest deaths first. ``failed=True``: tasks
        that failed and wait for another attempt; ``task.reason`` says why. Scheduled tasks come first, by due time,
        then held, ready, leased and dead ones. ``decode=False``: payloads are the bytes that their codecs made.

        ``state="done"`` and ``"cancelled"`` list what is kept of tasks that have ended, the latest first, by ``topic``
        and ``key`` alone; ``page.since`` says how far back that goes. ``configure(done_age=…)`` has it kept.

        **With ``key`` and no ``state``** a page has what is leased, then what is ready, then what waits, in the order
        in which it will run; without a ``topic``, one topic after the other. Its dead tasks are not among them: give
        ``state="dead"``, too.

        A call looks at 1,000 tasks of a shard at most. So a page may be shorter than ``limit``, even empty, and only
        the cursor marks the end. A walk through the pages lists each unchanged task once, even while shards are added
        or removed; a task that changes meanwhile may be listed twice, or not at all.

        >>> for task in await engine.tasks("webhook", key="customer-7"):
        ...     print(task.state, task.id)
        >>> page = await engine.tasks("mail", state="dead")
        >>> while page.cursor is not None:
        ...     page = await engine.tasks("mail", state="dead", cursor=page.cursor)
        """
        query = Query.checked(topic, holder=holder, newest=newest, **filter)
        check_limit(limit)
        query.place(self.name, cursor)
        if query.is_of_ends:
            return await self._carry_out(lambda cache: ends.end_page(cache, query, cursor, limit))
        codec = self._options.codec if decode else None
        return await self._store.page(query, cursor, limit, codec, self._deadline())

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
        query = Query.checked(topic, **dead_filter(**filter))
        cursor = None
        while True:
            page = await self.tasks(topic, state="dead", tag=query.tag, key=query.key, cursor=cursor)
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
        return await self._store.forecast(horizon, self._deadline())

    async def history(self, horizon: Horizon = "hour") -> History:
        """Returns the counts of each minute of the last "hour", each hour of the last "day", or each day of the last
        "month" (30 days), as dispatchers recorded them; ``forecast`` goes on where they end.

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
        """Cancels the tasks that match and are not leased. For the filter, see ``tasks``; for all tasks, give
        ``everything=True``. ``reason``: tasks that died of it, or whose last attempt failed of it, as in
        ``requeue_all``. To remove all tasks of a topic, ``purge`` is faster.

        It cancels each task by its id, page by page, and calls ``progress`` after each page; if that raises, the
        command ends there. Each page has the engine's timeout for itself. ``dry_run`` only counts.

        **A ``tag`` alone misses no task that was pushed before the call**, in any state, even while shards are added or
        removed. The result is true if none of them is running, and its ``running`` has the ids of those that are.
        Counts may be low if answers were lost.

        >>> result = await engine.cancel_all("mail", due=(None, dt.datetime.now(dt.UTC)))
        >>> print(result.done, "of", result.matched)
        >>> if not (result := await engine.cancel_all(tag="user-42")):
        ...     print(result.done, "will not be delivered; these run:", result.running)
        """
        check_reason(reason)
        query = bulk_query("cancel", topic, **filter)
        return await self._all("cancel", query, progress, reason=reason, count_only=dry_run)

    async def purge(self, topic: str | None = None, **filter: Unpack[Filter]) -> int:
        """Removes the tasks that match and are not leased: scheduled, ready and dead. Returns how many. With a topic,
        or ``everything=True``, it removes list by list, which is fastest; with any other filter it does what
        ``cancel_all`` does. ``everything=True`` removes what is kept of ended tasks, too. Dedup windows stay. A task
        that is pushed meanwhile may stay; a task that moves to another shard meanwhile is removed. Each of its requests
        has the engine's timeout for itself.

        >>> print(await engine.purge("mail"), "tasks removed")
        """
        query = bulk_query("cancel", topic, name="purge", **filter)
        if filter.get("failed") or any(filter.get(each) is not None for each in ("state", "due", "tag", "key")):
            return (await self._all("cancel", query)).done
        await self._store.opened(self._deadline())
        done = await self._store.purge(Bulk(self._map(), "cancel", query))
        if topic is None and self._map().topology.ends_rule:
            await self._carry_out(ends.remove)
        which = "every topic" if topic is None else f"topic {shown_topic(topic)}"
        await self._carry_out(lambda cache: note(cache, f"{which}: purged of {done:,} task{'' if done == 1 else 's'}"))
        return done

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
        Tasks that die again meanwhile stay dead. For the filter, see ``dead``; for the rest, ``cancel_all``.
        ``reason``: only tasks that died of it: a reason's last line with ``#`` for each number, as pages group them.

        >>> print((await engine.requeue_all("mail")).done, "tasks run again")
        >>> print((await engine.requeue_all("mail", reason="TimeoutError: no answer in # s")).done)
        """
        check_reason(reason)
        query = bulk_query("requeue", topic, **dead_filter(**filter))
        return await self._all("requeue", query, progress, reason=reason, count_only=dry_run)

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
        beginning of the command, or ``at`` an instant. For the filter, see ``tasks``; for the rest, ``cancel_all``.

        >>> result = await engine.reschedule_all("mail", delay=3600)
        >>> result = await engine.reschedule_all("mail", delay=0, failed=True)    # retries now what waits for it
        """
        check_reason(reason)
        query, word = bulk_query("reschedule", topic, **filter), moved_due(delay, at)
        return await self._all("reschedule", query, progress, due=word, reason=reason, count_only=dry_run)

    async def _all(self, verb: Verb, query: Query, progress: Progress | None = None, **options: Any) -> BulkResult:
        await self._store.opened(self._deadline())
        bulk = Bulk(self._map(), verb, query, **options)
        await self._store.bulk(bulk, progress or (lambda _: None))
        await self._carry_out(lambda cache: note(cache, bulk.words))
        return bulk.so_far
