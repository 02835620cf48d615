"""The engine for asyncio. Its twin for threads is ``sync``; they differ in the awaiting, and in what only threads need.

Pollers are threads for both: they sleep exactly, whatever the event loop is busy with.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, Self

from shardq import operation, recovery
from shardq.consumer import AsyncConsumer, Consumer
from shardq.consumer.background import BackgroundTasks
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.dispatcher import Dispatcher
from shardq.drivers.aio import AsyncDriver
from shardq.drivers.aiorouter import OTHER_LOOP
from shardq.drivers.settings import Settings
from shardq.drivers.sync import Driver
from shardq.embedded import Embedded, Fsync
from shardq.engine import advice, control, in_threads
from shardq.engine.core import check_batch, checked_id, moved_due
from shardq.engine.in_threads import Threads
from shardq.engine.operator_commands import AsyncOperatorCommands
from shardq.engine.options import (
    DEFAULT_ATTEMPTS,
    DEFAULT_CONNECT_TIMEOUT_S,
    DEFAULT_DEAD_AGE_S,
    DEFAULT_DEAD_COUNT,
    DEFAULT_LEASE_S,
    DEFAULT_NAME,
    DEFAULT_SHARDS,
    DEFAULT_TIMEOUT_S,
    STATS_TIMEOUT_S,
    Options,
)
from shardq.engine.stats import Stats
from shardq.errors import EngineClosed
from shardq.model.checks import MAX_PAYLOAD, due_spec
from shardq.model.record import Codec
from shardq.model.task import OnConflict, Outcome, Receipt, Task, TaskInfo
from shardq.producer import by_id, pushing
from shardq.producer.durable import Durability, check_durability, push_durably
from shardq.producer.packing import BATCH, Entries, each_task
from shardq.producer.stream import Stream
from shardq.worker import AsyncWorker, Backoff
from shardq.worker.base import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S, Plan
from shardq.worker.processor import Processor


class AsyncEngine(AsyncOperatorCommands):
    """A delay engine: push tasks with a due time, and have them dispatched at that time.

    It opens itself at its first use, or in an ``async with`` block; ``start()`` runs pollers in this process. For one
    event loop, the one it is opened in, whose coroutines may share it. When that has ended without a ``close()``,
    ``open()`` in another makes it that one's; pollers run on meanwhile.

    >>> async with shardq.AsyncEngine("redis://127.0.0.1:6379/0", name="orders") as engine:
    ...     await engine.start()
    ...     id = await engine.push({"order": 42}, delay=1800)
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = DEFAULT_NAME,
        shards: int = DEFAULT_SHARDS,
        codec: str | Codec = "json",
        max_payload: int = MAX_PAYLOAD,
        max_attempts: int = DEFAULT_ATTEMPTS,
        dead_age: float = DEFAULT_DEAD_AGE_S,
        dead_count: int = DEFAULT_DEAD_COUNT,
        timeout: float = DEFAULT_TIMEOUT_S,
        connect_timeout: float = DEFAULT_CONNECT_TIMEOUT_S,
        protocol: int = 3,
        fsync: Fsync = "everysec",
    ) -> None:
        """Checks its arguments; connects later.

        ``url``: redis://, rediss://, unix://, redis+cluster://, redis+sentinel:// or embedded://; none: $SHARDQ_URL,
        else an embedded server in the user's data directory. ``shards`` counts when the name is new. ``timeout`` bounds
        how long a call waits out whatever passes: failovers, moving slots, loading servers. ``max_attempts`` holds for
        tasks that bring no limit of their own; dead ones are kept for ``dead_age`` seconds, ``dead_count`` at most.
        ``fsync``: how often an embedded server forces its writes to the disk, "everysec" or "always".
        """
        super().__init__(
            Options.checked(
                url,
                name=name,
                shards=shards,
                codec=codec,
                max_payload=max_payload,
                max_attempts=max_attempts,
                dead_age=dead_age,
                dead_count=dead_count,
                timeout=timeout,
                connect_timeout=connect_timeout,
                protocol=protocol,
                fsync=fsync,
            )
        )

    def _forked(self) -> None:
        super()._forked()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: AsyncDriver | None = None
        self._dispatcher: Dispatcher | None = None
        self._threads: Threads | None = None
        self._wakeups: Wakeups | None = None
        self._background = BackgroundTasks()
        self._lock = asyncio.Lock()
        """Held while opening, starting, stopping and closing; the loop's, see ``_here``."""

    # ---- opening and closing

    async def open(self) -> Self:
        """Connects, and creates the name when it is new. Called by every first use; again after close()."""
        async with self._here():
            await self._open()
        return self

    def _here(self) -> asyncio.Lock:
        """The lock, for the loop in which the engine is open, or is to be. What another loop left open when it ended is
        given up.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            driver = self._driver
            in_use = driver is not None or self._lock.locked()
            if in_use and self._loop is not None and not self._loop.is_closed():
                raise EngineClosed(OTHER_LOOP)
            if driver is not None:
                driver.abandon()
            self._driver, self._loop, self._lock = None, loop, asyncio.Lock()
            self._background = BackgroundTasks()
        return self._lock

    async def _open(self) -> AsyncDriver:
        self._closed = False
        if self._driver is None:
            # starting an embedded server can take a moment
            settings, self._embedded = await in_threads.made(self._entered, self._not_entered)
            driver = AsyncDriver(settings)
            try:
                await driver.open()
                topology = await operation.arun(driver, recovery.create_topology(self.name, self.options.shards))
                if self._threads is None:
                    self._learn(topology)
                else:
                    self._map().learn(topology)
                advice.say(await operation.arun(driver, self._advice(driver), advice.TIMEOUT_S))
            except BaseException:
                try:
                    await driver.close()
                finally:
                    if self._threads is None:
                        await in_threads.ending(self._leave)
                raise
            self._driver = driver
        return self._driver

    def _not_entered(self, entered: tuple[Settings, Embedded | None]) -> None:
        """Undoes ``_entered``."""
        server = entered[1]
        if server is not None and server is not self._embedded:
            server.leave()

    async def close(self) -> None:
        """Stops the pollers, closes every connection, and leaves the embedded server. Pushed tasks stay.

        Cancelled, it returns at once, and all that is done all the same.
        """
        async with self._here():
            self._closed = True
            driver, self._driver = self._driver, None
            # first, so that a cancellation finds nothing left to be begun
            ended = in_threads.ending(self._rest())
            if driver is not None:
                await asyncio.shield(asyncio.create_task(self._close_driver(driver)))
            await ended

    async def _close_driver(self, driver: AsyncDriver) -> None:
        """When what cancelled callers left to be told has been told, for which it is needed."""
        try:
            await self._background.close()
        finally:
            await driver.close()

    def _rest(self) -> Callable[[], None]:
        """Takes from this engine all but its driver; the thread that is given this ends it."""
        dispatcher, self._dispatcher = self._dispatcher, None
        wakeups, self._wakeups = self._wakeups, None
        threads, self._threads = self._threads, None
        server, self._embedded = self._embedded, None

        def end() -> None:
            if dispatcher is not None:
                dispatcher.stop()
            if wakeups is not None:
                wakeups.close()
            if threads is not None:
                threads.close()
            if server is not None:
                server.leave()

        return end

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Runs pollers in this process, for its share of the shards. Returns when they run; cancelled, none does.

        Each shard takes a connection. Where the limit of open files of this process (``ulimit -n``) or the servers'
        ``maxclients`` would not do for all shards, the log says so, and ``stats().warnings``.
        """
        async with self._here():
            driver = await self._open()
            if self._dispatcher is None:
                threads = await self._open_threads()
                advised = self._advice(driver, pollers=threads.driver)
                advice.say(await operation.arun(driver, advised, advice.TIMEOUT_S))
                self._dispatcher = await in_threads.made(lambda: self._new_dispatcher(threads), Dispatcher.stop)

    def _new_dispatcher(self, threads: Threads) -> Dispatcher:
        dispatcher = Dispatcher(
            threads.driver,
            self._map(),
            threads.subscriber,
            max_attempts=self.options.max_attempts,
            keep=self.options.keep(),
        )
        dispatcher.start()
        return dispatcher

    async def stop(self) -> None:
        """Ends this process's pollers; other processes take their shards over at once."""
        async with self._here():
            dispatcher, self._dispatcher = self._dispatcher, None
            if dispatcher is not None:
                await in_threads.ending(dispatcher.stop)

    async def _open_driver(self) -> AsyncDriver:
        driver = self._driver
        if driver is None:
            self._check_not_closed()
            async with self._here():
                driver = await self._open()
        return driver

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
        durability: Durability | None = None,
    ) -> Receipt:
        """Stores one task, due after ``delay`` seconds or ``at`` an instant; returns its id when it is stored.

        With an ``id`` of your own the push can be repeated safely: ``on_conflict`` says what becomes of a task that has
        the id already (keep it, replace it, or reject: raises Conflict), and ``dedup`` for how many seconds the id is
        remembered after its task is done. A task not claimed by ``expires`` (seconds from now, or an instant) is
        buried instead of run late. ``durability``: return only when all replicas ("replicated") or the disk ("fsynced")
        have it, else raise NotReplicated; where there are none, DurabilityUnavailable, with nothing stored.
        """
        entries = self._packer.one(
            Task(
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
            )
        )
        if durability is not None:
            return (await self._push_durably(entries, durability))[0]
        driver = await self._open_driver()
        return await operation.arun(driver, pushing.push_one(self._map(), self._packer, entries))

    async def _push_durably(self, entries: Entries, durability: Durability, batch: int = BATCH) -> list[Receipt]:
        """In a thread: on the shared pipes of this loop a WAIT would hold up everybody."""
        check_durability(durability)
        (await self._open_driver()).check_open()
        async with self._here():
            driver = (await self._open_threads()).driver
        cache = self._map()
        steps = pushing.push(cache, self._packer, entries, most=batch)
        return await asyncio.to_thread(push_durably, driver, cache, entries.ids, steps, durability)

    async def push_many(
        self, tasks: Iterable[Task], *, batch: int = BATCH, durability: Durability | None = None
    ) -> list[Receipt]:
        """Stores many tasks; returns their ids in order. All are checked before the first is sent.

        All or nothing for each batch of at most ``batch`` tasks of one shard; raises PushError when not all are stored.
        """
        entries = self._packed_many(tasks, batch)
        if durability is not None:
            return await self._push_durably(entries, durability, batch)
        driver = await self._open_driver()
        return await operation.arun(driver, pushing.push(self._map(), self._packer, entries, most=batch))

    async def push_iter(self, tasks: Iterable[Task], *, batch: int = BATCH) -> AsyncIterator[list[Receipt]]:
        """Stores any number of tasks in bounded memory, yielding the ids of those stored, in order.

        Tasks are packed while the servers work on earlier ones. A wrong task raises its error after everything before
        its window of some thousand tasks is stored and yielded; of that window nothing is sent. A window that is not
        stored as a whole ends the taking: what is under way is finished and yielded, then PushError tells the rest.
        """
        check_batch(batch)
        source = each_task(tasks)
        driver = await self._open_driver()
        stream = Stream(self._map(), self._packer, source, batch)
        async for answered, result in driver.call_all(stream.calls()):
            stream.note(answered, result)
            for window in stream.finished():
                if (receipts := await operation.arun(driver, stream.completed(window))) is not None:
                    yield receipts
        for window in stream.finished():
            if (receipts := await operation.arun(driver, stream.completed(window))) is not None:
                yield receipts
        stream.check()

    # ---- by id

    async def cancel(self, id: str) -> Outcome:
        """Removes a task that nobody holds: cancelled, running, gone, or unknown when an answer was lost."""
        checked_id(id)
        driver = await self._open_driver()
        return await operation.arun(driver, by_id.cancel(self._map(), id))

    async def reschedule(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Gives a task that nobody holds another due time: moved, running, dead, gone, or unknown when an answer was
        lost.
        """
        checked_id(id)
        due = moved_due(delay, at)
        driver = await self._open_driver()
        return await operation.arun(driver, by_id.reschedule(self._map(), id, due))

    async def requeue(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Schedules a dead task again, with all its attempts: requeued, what it is instead, or unknown when an answer
        was lost.
        """
        checked_id(id)
        due = due_spec(delay, at)
        driver = await self._open_driver()
        return await operation.arun(driver, by_id.requeue(self._map(), id, due))

    async def get(self, id: str) -> TaskInfo | None:
        """Returns the state of a task; None when it is gone."""
        checked_id(id)
        driver = await self._open_driver()
        return await operation.arun(driver, by_id.get(self._map(), id, self.options.codec))

    # ---- the whole

    async def stats(self) -> Stats:
        """Counts for each shard and in total. No snapshot: shards are seen one after the other, and one that can't be
        seen says why.
        """
        driver = await self._open_driver()
        timeout = min(self.options.timeout, STATS_TIMEOUT_S)
        counts_by_shard = await operation.arun(
            driver, control.count_shards(self._map(), self._topics_of_shard), timeout
        )
        nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in counts_by_shard}
        return self._stats(
            counts_by_shard,
            nodes,
            self._dispatcher,
            replication=await operation.arun(driver, control.replication(counts_by_shard, nodes), timeout),
            advised=await operation.arun(
                driver, self._advice(driver, counts_by_shard, pollers=self._polling()), timeout
            ),
            subscriber=self._threads.subscriber if self._threads else None,
            server=driver.server_version,
            connections=driver.connections(),
        )

    def _polling(self) -> Driver | None:
        """The driver of the pollers, while there are some."""
        return self._threads.driver if self._dispatcher is not None and self._threads is not None else None

    def consumer(
        self,
        *names: str,
        topics: Mapping[str, int] | None = None,
        lease: float = DEFAULT_LEASE_S,
        name: str | None = None,
    ) -> AsyncConsumer:
        """Claims tasks of these topics, in this order of priority; of the default topic when none is given.

        ``topics={"high": 5, "low": 1}`` shares by weight instead, so that low ones are not starved. Of a topic that is
        forwarded or paused nothing is given out until that ends; the log says so of a forwarded one.
        """
        self._check_not_closed()
        if self._driver is None:
            raise EngineClosed("the engine is not open: await engine.open(), or use it in an async with block")
        return AsyncConsumer(
            self._driver, self._claims(names, topics, lease, name), self._open_wakeups, self._background
        )

    def worker(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        lease: float = DEFAULT_LEASE_S,
        grace: float = DEFAULT_GRACE_S,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        name: str | None = None,
    ) -> AsyncWorker:
        """Runs handlers: register them with ``@worker.on(topic)`` or ``@worker.task``, then ``await worker.run()``.

        ``concurrency`` handlers at once; ``lease``: how long a task whose worker died waits for another; ``grace``: how
        long handlers may finish when the worker stops; ``topics={name: weight}``: shares in place of the order of
        registration.
        """
        return AsyncWorker(
            self.push,
            self._processor,
            topics=topics,
            concurrency=concurrency,
            lease=lease,
            grace=grace,
            max_attempts=self.options.max_attempts if max_attempts is None else max_attempts,
            backoff=backoff,
            name=name,
        )

    async def _processor(self, plan: Plan) -> Processor:
        """The running part of a worker; ``AsyncWorker.run`` calls it."""
        await self.open()
        wakeups = await self._open_wakeups()
        async with self._here():
            driver = (await self._open_threads()).driver
        names = () if plan.weights else tuple(plan.handlers)
        claims = self._claims(names, plan.weights, plan.lease, plan.name, plan.types, plan.attempts)
        consumer = Consumer(driver, claims, lambda: wakeups)
        return self._noted(Processor(driver, claims, consumer, plan, loop=asyncio.get_running_loop()))

    async def _open_threads(self) -> Threads:
        """The lock is held."""
        if self._threads is None:
            self._check_not_closed()
            settings = (await self._open()).settings
            self._threads = await in_threads.made(lambda: Threads.opened(settings), Threads.close)
        return self._threads

    async def _open_wakeups(self) -> Wakeups:
        if self._wakeups is None:
            async with self._here():
                threads = await self._open_threads()
                if self._wakeups is None:
                    self._wakeups = await in_threads.made(
                        lambda: Wakeups(threads.driver, self._map(), threads.subscriber), Wakeups.close
                    )
        return self._wakeups
