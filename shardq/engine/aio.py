"""The engine for asyncio. Its twin for threads is ``sync``; they differ in the awaiting, and in what only threads need.

Pollers are threads for both: they sleep exactly, whatever the event loop is busy with.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Self

from shardq import operation
from shardq.bells import Bells
from shardq.consumer import AsyncConsumer, Consumer
from shardq.consumer.endings import Endings
from shardq.consumer.room import Room
from shardq.dispatcher import Dispatcher
from shardq.drivers.aio import AsyncDriver
from shardq.drivers.sync import Driver
from shardq.embedded import Fsync
from shardq.engine import advice, control
from shardq.engine.core import check_batch, checked_id, moved_due
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
from shardq.engine.orders import AsyncOrders
from shardq.engine.stats import Stats
from shardq.errors import EngineClosed
from shardq.model.checks import MAX_PAYLOAD, due_spec
from shardq.model.record import Codec
from shardq.model.task import OnConflict, Outcome, Receipt, Task, TaskInfo
from shardq.producer import operations
from shardq.producer.durable import Durability, check_durability, push_durably
from shardq.producer.packing import BATCH, Entries, each_task
from shardq.producer.stream import Stream
from shardq.worker import AsyncWorker, Backoff
from shardq.worker.base import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S, Plan
from shardq.worker.crew import Crew


class AsyncEngine(AsyncOrders):
    """A delay engine: push tasks with a due time, and have them dispatched at that time.

    It opens itself at its first use, or in an ``async with`` block; ``start()`` runs pollers in this process. For one
    event loop; its coroutines may share one.

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
        self._driver: AsyncDriver | None = None
        self._dispatcher: Dispatcher | None = None
        self._thread_driver: Driver | None = None
        self._bells: Bells | None = None
        self._room: Room | None = None
        self._endings = Endings()
        self._lock = asyncio.Lock()
        """Held while opening, starting, stopping and closing."""

    # ---- opening and closing

    async def open(self) -> Self:
        """Connects, and creates the name when it is new. Called by every first use; again after close()."""
        async with self._lock:
            await self._open()
        return self

    async def _open(self) -> AsyncDriver:
        self._closed = False
        if self._driver is None:
            # starting an embedded server can take a moment
            driver = AsyncDriver(await asyncio.to_thread(self._enter))
            try:
                await driver.open()
                self._learn(await operation.arun(driver, operation.created(self.name, self.options.shards)))
                advice.say(await operation.arun(driver, self._advice(driver), advice.TIMEOUT_S))
            except BaseException:
                await driver.close()
                await asyncio.to_thread(self._leave)
                raise
            self._driver = driver
        return self._driver

    async def close(self) -> None:
        """Stops the pollers, closes every connection, and leaves the embedded server. Pushed tasks stay."""
        async with self._lock:
            await self._stop()
            await self._endings.close()
            self._closed = True
            driver, self._driver = self._driver, None
            await asyncio.to_thread(self._end_threads)
            if driver is not None:
                await driver.close()
            await asyncio.to_thread(self._leave)

    def _end_threads(self) -> None:
        room, self._room = self._room, None
        bells, self._bells = self._bells, None
        driver, self._thread_driver = self._thread_driver, None
        if room is not None:
            room.close()
        if bells is not None:
            bells.close()
        if driver is not None:
            driver.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Runs pollers in this process, for its share of the shards. Returns when they run."""
        async with self._lock:
            await self._open()
            if self._dispatcher is None:
                self._dispatcher = await asyncio.to_thread(self._new_dispatcher)

    def _new_dispatcher(self) -> Dispatcher:
        driver, bells = self._threads()
        dispatcher = Dispatcher(
            driver,
            self._map(),
            bells,
            max_attempts=self.options.max_attempts,
            keep=self.options.keep(),
        )
        dispatcher.start()
        return dispatcher

    async def stop(self) -> None:
        """Ends this process's pollers; other processes take their shards over at once."""
        async with self._lock:
            await self._stop()

    async def _stop(self) -> None:
        dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None:
            await asyncio.to_thread(dispatcher.stop)

    async def _open_driver(self) -> AsyncDriver:
        driver = self._driver
        if driver is None:
            self._check_not_closed()
            async with self._lock:
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
        return await operation.arun(driver, operations.pushed_one(self._map(), self._packer, entries))

    async def _push_durably(self, entries: Entries, durability: Durability, batch: int = BATCH) -> list[Receipt]:
        """In a thread: on the shared pipes of this loop a WAIT would hold up everybody."""
        check_durability(durability)
        await self._open_driver()
        async with self._lock:
            driver, _ = await asyncio.to_thread(self._threads)
        atlas = self._map()
        steps = operations.pushed(atlas, self._packer, entries, most=batch)
        return await asyncio.to_thread(push_durably, driver, atlas, entries.ids, steps, durability)

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
        return await operation.arun(driver, operations.pushed(self._map(), self._packer, entries, most=batch))

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
        async for call, result in driver.call_all(stream.calls()):
            stream.note(call, result)
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
        return await operation.arun(driver, operations.cancelled(self._map(), id))

    async def reschedule(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Gives a task that nobody holds another due time: moved, running, dead, gone, or unknown when an answer was
        lost.
        """
        checked_id(id)
        due = moved_due(delay, at)
        driver = await self._open_driver()
        return await operation.arun(driver, operations.rescheduled(self._map(), id, due))

    async def requeue(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Schedules a dead task again, with all its attempts: requeued, what it is instead, or unknown when an answer
        was lost.
        """
        checked_id(id)
        due = due_spec(delay, at)
        driver = await self._open_driver()
        return await operation.arun(driver, operations.requeued(self._map(), id, due))

    async def get(self, id: str) -> TaskInfo | None:
        """What is known of a task; None when it is gone."""
        checked_id(id)
        driver = await self._open_driver()
        return await operation.arun(driver, operations.found(self._map(), id, self.options.codec))

    # ---- the whole

    async def stats(self) -> Stats:
        """Counts for each shard and in total. No snapshot: shards are seen one after the other, and one that can't be
        seen says why.
        """
        driver = await self._open_driver()
        timeout = min(self.options.timeout, STATS_TIMEOUT_S)
        glances = await operation.arun(driver, control.glanced(self._map(), self._topics_of_shard), timeout)
        nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in glances}
        return self._stats(
            glances,
            nodes,
            self._dispatcher,
            replication=await operation.arun(driver, control.replicated(glances, nodes), timeout),
            advised=await operation.arun(driver, self._advice(driver, glances), timeout),
            server=driver.server_version,
            connections=driver.connections(),
        )

    def consumer(
        self,
        *names: str,
        topics: Mapping[str, int] | None = None,
        lease: float = DEFAULT_LEASE_S,
        name: str | None = None,
    ) -> AsyncConsumer:
        """Claims tasks of these topics, in this order of priority; of the default topic when none is given.

        ``topics={"high": 5, "low": 1}`` shares by weight instead, so that low ones are not starved.
        """
        if self._driver is None:
            raise EngineClosed("the engine is not open: await engine.open(), or use it in an async with block")
        return AsyncConsumer(self._driver, self._claims(names, topics, lease, name), self._open_room, self._endings)

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
            self._crew,
            topics=topics,
            concurrency=concurrency,
            lease=lease,
            grace=grace,
            max_attempts=self.options.max_attempts if max_attempts is None else max_attempts,
            backoff=backoff,
            name=name,
        )

    async def _crew(self, plan: Plan) -> Crew:
        """The running part of a worker; ``AsyncWorker.run`` calls it."""
        await self.open()
        room = await self._open_room()
        assert self._thread_driver is not None, "opened with the room"
        driver, loop = self._thread_driver, asyncio.get_running_loop()
        names = () if plan.weights else tuple(plan.handlers)
        claims = self._claims(names, plan.weights, plan.lease, plan.name, plan.types, plan.attempts)
        consumer = Consumer(driver, claims, lambda: room)
        return Crew(driver, claims, consumer, plan, loop=loop)

    def _threads(self) -> tuple[Driver, Bells]:
        """What pollers and ears talk through: threads, whatever the loop is busy with. The lock is held."""
        assert self._driver is not None, "called by an open engine"
        if self._thread_driver is None:
            driver = Driver(self._driver.settings)
            driver.open()
            self._thread_driver, self._bells = driver, Bells(driver)
        assert self._bells is not None, "made together"
        return self._thread_driver, self._bells

    async def _open_room(self) -> Room:
        if self._room is None:
            async with self._lock:
                if self._room is None:
                    self._room = await asyncio.to_thread(self._new_room)
        return self._room

    def _new_room(self) -> Room:
        driver, bells = self._threads()
        return Room(driver, self._map(), bells)
