"""The engine for asyncio: how it is opened, started, stopped and closed. Its twin for threads is ``sync``.

Pollers are threads for both: they sleep exactly, whatever the event loop is busy with.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Self

from shardq.core import operation
from shardq.core.consumer import AsyncConsumer, Consumer
from shardq.core.consumer.ahead import Ahead
from shardq.core.consumer.aio import Trip
from shardq.core.consumer.background import BackgroundTasks
from shardq.core.consumer.claims import Claims
from shardq.core.consumer.waiting.wakeups import Wakeups
from shardq.core.dispatcher import Dispatcher
from shardq.core.drivers.aio import AsyncDriver
from shardq.core.drivers.aiorouter import OTHER_LOOP
from shardq.core.drivers.settings import Settings
from shardq.core.model.task import Delivery, Receipt
from shardq.core.producer import pushing
from shardq.core.producer.durable import Durability, check_durability, push_durably
from shardq.core.producer.gathering import Gatherer
from shardq.core.producer.packing import BATCH, Entries
from shardq.core.subscriber import Subscriber
from shardq.engine import advice, thread_work
from shardq.engine.listing_commands_aio import AsyncListingCommands
from shardq.engine.operator_commands_aio import AsyncOperatorCommands
from shardq.engine.options import DEFAULT_LEASE_S
from shardq.engine.schedule_commands_aio import AsyncScheduleCommands
from shardq.engine.task_commands_aio import AsyncTaskCommands
from shardq.engine.thread_work import Threads
from shardq.errors import EngineClosed, ServerFault, Unavailable
from shardq.features.embedded import Embedded
from shardq.features.sinks.function import BatchFunction
from shardq.worker import AsyncWorker, Backoff
from shardq.worker.base import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S, Plan
from shardq.worker.processor import Processor


class AsyncEngine(AsyncTaskCommands, AsyncOperatorCommands, AsyncListingCommands, AsyncScheduleCommands):
    """A delay engine: push tasks with a due time, and have them dispatched at that time.

    It opens itself at its first use, or in an ``async with`` block; ``start()`` runs pollers in this process. An engine
    belongs to the event loop that opens it, and all coroutines of that loop may share it: what they push at the same
    time shares calls, and each is told what became of its own task. When the loop ends without ``close()``, another
    loop takes the engine over with ``open()``; pollers run on meanwhile.

    It has all that ``Engine`` has but ``buffered()``, which coalesces the pushes of threads: here ``push`` does that.

    >>> async with shardq.AsyncEngine("redis://127.0.0.1:6379/0", name="orders") as engine:
    ...     await engine.start()
    ...     id = await engine.push({"order": 42}, delay=1800)
    """

    def _forked(self) -> None:
        super()._forked()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._driver: AsyncDriver | None = None
        self._gatherer: Gatherer
        """The pushes that go by the driver."""
        self._threads: Threads | None = None
        self._wakeups: Wakeups | None = None
        self._background = BackgroundTasks()
        self._closing: set[asyncio.Task[None]] = set()
        """The calls of ``close`` that are under way; their callers may be gone."""
        self._lock = asyncio.Lock()
        """Held while opening, starting, stopping and closing; the loop's, see ``_here``."""

    # ---- opening and closing

    async def open(self) -> Self:
        """Connects, and creates the name when it is new. Called by every first use; again after close().

        >>> await engine.open()
        """
        deadline = self._deadline()
        async with self._held(deadline):
            try:
                await self._open(deadline)
            except ServerFault as exc:
                if not self._can_spool(exc):
                    raise
        return self

    def _here(self) -> asyncio.Lock:
        """Returns the lock of the running loop. Abandons what a loop that has ended left open. Raises EngineClosed
        while the engine is open in another loop.
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

    @asynccontextmanager
    async def _held(self, deadline: float) -> AsyncIterator[None]:
        """Holds the lock of the running loop. Raises Unavailable when others hold it until the deadline."""
        lock = self._here()
        try:
            async with asyncio.timeout_at(deadline):
                await lock.acquire()
        except TimeoutError:
            raise Unavailable(
                f"other tasks have been opening or closing this engine for {self.options.timeout:g} s: "
                "check that its servers run and can be reached from here"
            ) from None
        try:
            yield
        finally:
            lock.release()

    async def _open(self, deadline: float) -> AsyncDriver:
        self._closed = False
        if self._driver is None:
            if self._spool is not None:
                await thread_work.start(self._spool.resume)
            # In a thread: starting an embedded server can take a moment.
            settings, self._embedded = await thread_work.make(self._entered, self._not_entered)
            driver = self._parts.async_driver(settings)
            driver.note_in(self._journal)
            try:
                await driver.open(deadline)
                topology = await operation.arun(driver, self.options.create_topology(), deadline=deadline)
                if self._threads is None:
                    self._learn(topology)
                else:
                    self._map().learn(topology)
                advised = operation.arun(driver, self._advice(driver), deadline=advice.until(deadline))
                advice.log_new(await advised)
                if self._journal is not None and self._threads is None:
                    self._threads = await thread_work.make(
                        lambda: Threads.opened(self._parts.driver(settings), deadline), Threads.close
                    )
                    self._watch_masters(self._threads.driver)
            except BaseException:
                try:
                    await driver.close()
                finally:
                    if self._threads is None:
                        await thread_work.start(self._leave)
                raise
            self._driver, self._gatherer = driver, Gatherer(driver, self._map(), self._packer)
        return self._driver

    def _not_entered(self, entered: tuple[Settings, Embedded | None]) -> None:
        """Undoes ``_entered``."""
        server = entered[1]
        if server is not None and server is not self._embedded:
            server.leave()

    async def close(self) -> None:
        """Stops the pollers, closes every connection, and leaves the embedded server. Pushed tasks stay.

        A cancelled call returns at once; the work is finished all the same.

        >>> await engine.close()
        """
        closing = asyncio.create_task(self._close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        await asyncio.shield(closing)

    async def _close(self) -> None:
        async with self._here():
            self._closed = True
            driver, self._driver = self._driver, None
            # Begun first, so that a cancellation leaves nothing that is not begun.
            ended = thread_work.start(self._rest())
            if driver is not None:
                await asyncio.shield(asyncio.create_task(self._close_driver(driver, self._gatherer)))
            await ended

    async def _close_driver(self, driver: AsyncDriver, gatherer: Gatherer) -> None:
        """Closes the driver after the requests that cancelled callers left behind: those need it."""
        try:
            await self._background.close()
        finally:
            await driver.close()
            await gatherer.close()

    def _rest(self) -> Callable[[], None]:
        """Detaches everything but the driver from this engine. Returns the function that ends it, for a thread."""
        dispatcher, self._dispatcher = self._dispatcher, None
        wakeups, self._wakeups = self._wakeups, None
        replayer, self._replayer = self._replayer, None
        threads, self._threads = self._threads, None
        server, self._embedded = self._embedded, None
        spool = self._spool

        def end() -> None:
            if replayer is not None:
                replayer.stop()
            if dispatcher is not None:
                dispatcher.stop()
            if wakeups is not None:
                wakeups.close()
            if threads is not None:
                threads.close()
            if spool is not None:
                spool.close()
            if server is not None:
                server.leave()

        return end

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Runs pollers in this process, for its share of the shards. Returns when they run. A cancelled call leaves
        none running.

        Each shard takes a connection. The log and ``health().warnings`` tell when ``ulimit -n`` or a server's
        ``maxclients`` is too low for all shards.

        >>> await engine.start()
        """
        deadline = self._deadline()
        async with self._held(deadline):
            driver = await self._open(deadline)
            if self._dispatcher is None:
                threads = await self._open_threads(deadline)
                advised = self._advice(driver, pollers=threads.driver)
                advice.log_new(await operation.arun(driver, advised, deadline=advice.until(deadline)))
                await self._declare_recurring(self._tasks.registered)
                self._dispatcher = await thread_work.make(
                    lambda: self._new_dispatcher(threads, deadline), lambda dispatcher: dispatcher.stop()
                )

    def _new_dispatcher(self, threads: Threads, deadline: float) -> Dispatcher:
        dispatcher = self._parts.dispatcher(
            threads.driver,
            self._map(),
            threads.subscriber,
            sinks=self._new_sinks(threads.driver, threads.subscriber),
        )
        dispatcher.start(deadline)
        return dispatcher

    async def stop(self) -> None:
        """Ends this process's pollers; other processes take their shards over at once.

        >>> await engine.stop()
        """
        async with self._here():
            dispatcher, self._dispatcher = self._dispatcher, None
            if dispatcher is not None:
                await thread_work.start(dispatcher.stop)

    async def _open_driver(self, deadline: float) -> AsyncDriver:
        driver = self._driver
        if driver is None:
            self._check_not_closed()
            began = time.monotonic()
            async with self._held(deadline):
                if self._driver is None and self._spool is not None:
                    self._spool.check_since(began)
                driver = await self._open(deadline)
        return driver

    async def _push_one(self, entries: Entries) -> Receipt:
        if self._driver is not None:
            return await self._gatherer.push(entries)
        deadline = self._deadline()
        await self._open_driver(deadline)
        return await self._gatherer.push(entries, deadline)

    async def _push_durably(self, entries: Entries, durability: Durability, batch: int = BATCH) -> list[Receipt]:
        """Pushes in a thread: a WAIT on the loop's shared connections would delay every other caller."""
        check_durability(durability)
        deadline = self._deadline()
        (await self._open_driver(deadline)).check_open()
        async with self._held(deadline):
            threads = await self._open_threads(deadline)
        cache = self._map()
        steps = pushing.push(cache, self._packer, entries, most=batch)
        push = partial(push_durably, threads.driver, cache, entries.ids, steps, durability, deadline)
        return await asyncio.get_running_loop().run_in_executor(threads.durable_pushes, push)

    def _batch_function(self, function: BatchFunction) -> BatchFunction:
        """The function as a relay's thread calls it: a coroutine function runs in the loop that is running now."""
        if not inspect.iscoroutinefunction(function):
            return function
        loop = asyncio.get_running_loop()

        def call(batch: list[Delivery]) -> object:
            return asyncio.run_coroutine_threadsafe(function(batch), loop).result()

        return call

    def _present_subscriber(self) -> Subscriber | None:
        return self._threads.subscriber if self._threads else None

    def consumer(
        self,
        *names: str,
        topics: Mapping[str, int] | None = None,
        lease: float = DEFAULT_LEASE_S,
        name: str | None = None,
        prefetch: bool = False,
    ) -> AsyncConsumer:
        """Returns a consumer of these topics, in this order of priority; of the default topic if none is given.

        ``topics={"high": 5, "low": 1}`` shares by weight instead, so that low ones are not starved. A forwarded or
        paused topic gives out nothing until that ends; the log tells when all topics are forwarded.
        The first use of the consumer opens the engine, if it is not open.

        ``prefetch=True`` is for a program that takes a stream of quick tasks: while it works, its next claim is under
        way. What is claimed ahead is at most the work of some milliseconds, its leases run, a pause does not take it
        back, and ``close()`` gives it back.

        >>> consumer = engine.consumer("urgent", "mail", lease=60)
        """
        make_claims = self._claims(names, topics, lease, name)
        self._check_not_closed()

        async def opened(deadline: float) -> tuple[AsyncDriver, Claims, BackgroundTasks]:
            driver = await self._open_driver(deadline)
            return driver, make_claims(), self._background

        ahead = Ahead[Trip](lease) if prefetch else None
        return AsyncConsumer(opened, self._open_wakeups, tuple(topics or names or ("",)), self.options.timeout, ahead)

    def worker(
        self,
        *,
        topics: Mapping[str, int] | Iterable[str] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        lease: float = DEFAULT_LEASE_S,
        grace: float = DEFAULT_GRACE_S,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        name: str | None = None,
    ) -> AsyncWorker:
        """Runs the engine's tasks, and handlers of its own: register those with ``@worker.on(topic)`` or
        ``@worker.task``, then ``await worker.run()``.

        ``concurrency`` handlers at once; ``lease``: how long a task whose worker died waits for another; ``grace``: how
        long handlers may finish when the worker stops.

        ``topics``: the only topics to serve, as names in their order of priority, or as ``{name: weight}`` to share by
        weight. None given: every topic of its own handlers, in the order of registration, and then of all tasks that
        the engine has when the worker runs.

        There is no ``processes=``: a process with a running loop can't be forked. ``shardq work --processes`` runs
        this worker in several, each with a loop of its own.

        >>> worker = engine.worker(topics=["urgent", "mail"], concurrency=32)
        """
        return AsyncWorker(
            self.push,
            self._tasks,
            self._processor,
            topics=topics,
            concurrency=concurrency,
            lease=lease,
            grace=grace,
            max_attempts=max_attempts,
            backoff=backoff,
            name=name,
        )

    async def _processor(self, plan: Plan) -> Processor:
        """The running part of a worker; ``AsyncWorker.run`` calls it."""
        await self.open()
        await self._declare_recurring(plan.functions)
        deadline = self._deadline()
        wakeups = await self._open_wakeups(deadline)
        async with self._held(deadline):
            driver = (await self._open_threads(deadline)).driver
        claims = self._planned_claims(plan)
        consumer = Consumer(driver, claims, lambda deadline: wakeups)
        return self._noted(Processor(driver, claims, consumer, plan, loop=asyncio.get_running_loop()))

    async def _open_threads(self, deadline: float) -> Threads:
        """The lock is held."""
        if self._threads is None:
            self._check_not_closed()
            settings = (await self._open(deadline)).settings
            self._threads = await thread_work.make(
                lambda: Threads.opened(self._parts.driver(settings), deadline), Threads.close
            )
        return self._threads

    async def _open_wakeups(self, deadline: float) -> Wakeups:
        if self._wakeups is None:
            async with self._held(deadline):
                threads = await self._open_threads(deadline)
                if self._wakeups is None:
                    self._wakeups = await thread_work.make(
                        lambda: Wakeups(threads.driver, self._map(), threads.subscriber), Wakeups.close
                    )
        return self._wakeups
