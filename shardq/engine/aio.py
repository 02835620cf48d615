# For asyncio. `make fmt` generates sync.py from it.
"""The engine: how it is opened, started, stopped and closed, and its consumers and workers.

Pollers are threads for both flavours: they sleep exactly, whatever the event loop is busy with.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Self

from shardq.core.consumer import AsyncConsumer, Consumer
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.dispatcher import Dispatcher
from shardq.core.drivers.aio import AsyncDriver
from shardq.core.model.checks import Topics, checked_topics
from shardq.core.model.task import Receipt
from shardq.core.operation import arun
from shardq.core.producer import pushing
from shardq.core.producer.durable import Durability, check_durability, push_durably
from shardq.core.producer.packing import Entries
from shardq.core.subscriber import Subscriber
from shardq.engine import servers
from shardq.engine.operator_aio import AsyncOperatorCommands
from shardq.engine.options import DEFAULT_LEASE_S
from shardq.errors import ServerFault, Unavailable
from shardq.worker import AsyncWorker, Backoff
from shardq.worker.base import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S
from shardq.worker.handlers import Plan

if True:  # ASYNC
    import asyncio
    from collections.abc import Callable
    from functools import partial
    from typing import TypeVar

    from shardq.core.consumer.aio import Trip
    from shardq.core.consumer.background import BackgroundTasks
    from shardq.core.consumer.claim_state import Claims
    from shardq.core.consumer.prefetch import Ahead
    from shardq.core.drivers.aio import OTHER_LOOP
    from shardq.core.drivers.settings import Settings
    from shardq.core.drivers.sync import Driver
    from shardq.core.operation import Operation
    from shardq.core.producer.durable import push_together
    from shardq.core.producer.gathering import Gatherer
    from shardq.core.producer.shared_barriers import Outcomes
    from shardq.engine.loop_threads import Threads, ended_in_thread, made_in_thread
    from shardq.errors import EngineClosed
    from shardq.features.embedded import Embedded

    T = TypeVar("T")
else:
    import math
    from contextlib import AbstractContextManager
    from typing import Any

    from shardq.core.consumer.prefetch import AheadWatch
    from shardq.core.locks import Permits
    from shardq.core.model.task import Task
    from shardq.core.producer import buffer
    from shardq.core.producer.buffer import Buffer
    from shardq.worker import Worker

if TYPE_CHECKING:
    from shardq.worker.processor import Processor


class AsyncEngine(AsyncOperatorCommands):
    """A delay engine: push tasks with a due time, and have them dispatched at that time.

    It opens itself at its first use, or in a block of ``async with``; ``start()`` runs pollers in this process. Forked
    processes may share an engine: in the child it is like one that was never opened.

    ``Engine`` is for threads, which may share it. Its twin for asyncio belongs to the event loop that opens it, whose
    coroutines may share it: what they push at the same time shares calls. When the loop ends without ``close()``,
    another takes the engine over with ``open()``; pollers run on meanwhile. Both can do the same, but ``buffered()`` is
    for threads alone: it coalesces their pushes.

    >>> async with shardq.AsyncEngine("redis://127.0.0.1:6379/0", name="orders") as engine:
    ...     await engine.start()
    ...     id = await engine.push({"order": 42}, delay=1800)
    """

    def _forked(self) -> None:
        super()._forked()
        self._wakeups: Wakeups | None = None
        if True:  # ASYNC
            self._loop: asyncio.AbstractEventLoop | None = None
            self._lock = asyncio.Lock()
            """Held while opening, starting, stopping and closing; the loop's, see ``_here``."""
            self._threads: Threads | None = None
            self._background = BackgroundTasks()
            self._closing: set[asyncio.Task[None]] = set()
            """The calls of ``close`` that are under way; their callers may be gone."""
        else:
            self._turn = Permits(1)
            """Out while opening, starting, stopping and closing."""
            self._subscriber: Subscriber | None = None
            self._ahead_watch: AheadWatch | None = None

    # ---- opening and closing

    async def open(self) -> Self:
        """Connects, and creates the name when it is new. Called by every first use; again after close().

        >>> await engine.open()
        """
        deadline = self._deadline()
        async with self._held(deadline):
            self._closed = False
            try:
                await self._connect(deadline)
            except ServerFault as exc:
                if not self._can_spool(exc):
                    raise
        return self

    if True:  # ASYNC

        def _here(self) -> asyncio.Lock:
            """Returns the lock of the running loop. Abandons what a loop that has ended left open. Raises EngineClosed
            while the engine is open in another loop.
            """
            loop = asyncio.get_running_loop()
            if self._loop is not loop:
                driver = self._redis.driver
                in_use = driver is not None or self._lock.locked()
                if in_use and self._loop is not None and not self._loop.is_closed():
                    raise EngineClosed(OTHER_LOOP)
                if driver is not None:
                    driver.abandon()
                self._redis.driver, self._loop, self._lock = None, loop, asyncio.Lock()
                self._background = BackgroundTasks()
            return self._lock
    else:

        def _here(self) -> AbstractContextManager[None]:
            return self._held(math.inf)

    @asynccontextmanager
    async def _held(self, deadline: float) -> AsyncIterator[None]:
        """Holds the lock. Raises Unavailable when others hold it until the deadline."""
        if True:  # ASYNC
            lock, is_ours = self._here(), False
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    is_ours = await lock.acquire()
        else:
            permit = self._turn.take_until(deadline)
            is_ours = permit is not None
        if not is_ours:
            raise Unavailable(
                f"other callers have been opening or closing this engine for {self._options.timeout:g} s: "
                "check that its servers run and can be reached from here"
            )
        try:
            yield
        finally:
            if True:  # ASYNC
                lock.release()
            else:
                self._turn.give(permit)

    async def _connect(self, deadline: float) -> AsyncDriver:
        """Opens the engine, if it is not open. The lock is held."""
        driver = self._redis.driver
        if driver is None:
            if True:  # ASYNC
                if self._spool is not None:
                    await ended_in_thread(self._spool.resume)
                # In a thread: starting an embedded server can take a moment.
                settings, self._embedded = await made_in_thread(self._entered, self._not_entered)
                driver = self._factory.async_driver(settings)
                driver.journal = self._journal
            else:
                if self._spool is not None:
                    self._spool.resume()
                settings, self._embedded = self._entered()
                driver = self._factory.driver(settings)
            try:
                await driver.open(deadline)
                topology = await arun(driver, self._options.create_topology(), deadline=deadline)
                if True:  # ASYNC
                    if self._threads is None:
                        self._cache = self._new_map(topology)
                    else:  # it is open, by a loop that has ended
                        self._map().learn(topology)
                else:
                    cache = self._new_map(topology)
                    if self._redis.driver is None:  # unless a signal's handler has opened the engine meanwhile
                        self._cache = cache
                servers.log_new(await arun(driver, self._find_settings(driver), deadline=servers.until(deadline)))
                if True:  # ASYNC
                    if self._journal is not None and self._threads is None:
                        self._threads = await self._new_threads(settings, deadline)
                        self._watch_masters(self._threads.driver)
                else:
                    self._watch_masters(driver)
            except BaseException:
                if True:  # ASYNC
                    try:
                        await driver.close()
                    finally:
                        if self._threads is None:
                            await ended_in_thread(self._leave)
                else:
                    driver.close()
                    self._leave()
                raise
            if False:  # ASYNC
                if (opened := self._redis.driver) is not None:  # by such a handler
                    driver.close()
                    return opened
            self._redis.use(driver)
        return driver

    async def _open_driver(self, deadline: float) -> AsyncDriver:
        driver = self._redis.driver
        if driver is None:
            self._check_not_closed()
            began = time.monotonic()
            async with self._held(deadline):
                self._check_not_closed()
                if self._redis.driver is None and self._spool is not None:
                    self._spool.check_since(began)
                driver = await self._connect(deadline)
        return driver

    if True:  # ASYNC

        async def _new_threads(self, settings: Settings, deadline: float) -> Threads:
            return await made_in_thread(lambda: Threads.opened(self._factory.driver(settings), deadline), Threads.close)

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
                driver, self._redis.driver = self._redis.driver, None
                # Begun first, so that a cancellation leaves nothing that is not begun.
                ended = ended_in_thread(self._rest().close)
                if driver is not None:
                    await asyncio.shield(asyncio.create_task(self._close_driver(driver, self._redis.gatherer)))
                await ended

        async def _close_driver(self, driver: AsyncDriver, gatherer: Gatherer) -> None:
            """Closes the driver after the requests that cancelled callers left behind: those need it."""
            try:
                await self._background.close()
            finally:
                await driver.close()
                await gatherer.close()
    else:

        def close(self) -> None:
            """Stops the pollers, closes every connection, and leaves the embedded server. Pushed tasks stay.

            Buffers that were not closed are: what they hold is sent within the engine's ``timeout``, or the log says
            how many pushes were lost. There is a ResourceWarning for each.

            >>> engine.close()
            """
            try:
                unclosed = buffer.end(self)  # without the lock, which their threads may need to connect
            finally:
                with self._here():
                    self._closed = True
                    self._rest().close()
            buffer.tell(unclosed)

    def _rest(self) -> ExitStack:
        """Detaches from this engine what its flavours close alike. The stack ends it, the last first."""
        server, self._embedded = self._embedded, None
        wakeups, self._wakeups = self._wakeups, None
        running = self._running
        dispatcher, running.dispatcher = running.dispatcher, None
        replayer, running.replayer = running.replayer, None
        if True:  # ASYNC
            threads, self._threads = self._threads, None
            beside = [] if threads is None else [threads.close]
        else:
            driver, self._redis.driver = self._redis.driver, None
            subscriber, self._subscriber = self._subscriber, None
            ahead_watch, self._ahead_watch = self._ahead_watch, None
            beside = [each.close for each in (driver, subscriber, ahead_watch) if each is not None]
        rest = ExitStack()
        if server is not None:
            rest.callback(server.leave)
        rest.callback(self._store.close)
        for close in beside:
            rest.callback(close)
        if wakeups is not None:
            rest.callback(wakeups.close)
        if dispatcher is not None:
            rest.callback(dispatcher.stop)
        if replayer is not None:
            rest.callback(replayer.stop)
        return rest

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # ---- pollers

    async def start(self) -> None:
        """Runs pollers in this process, for its share of the shards. Returns when they run. A call of
        asyncio that is cancelled leaves none running.

        Each shard takes a connection. The log and ``health().warnings`` tell when ``ulimit -n`` or a server's
        ``maxclients`` is too low for all shards.

        >>> await engine.start()
        """
        deadline = self._deadline()
        async with self._held(deadline):
            self._closed = False
            driver = await self._connect(deadline)
            if self._running.dispatcher is None:
                pollers, subscriber = await self._open_beside(deadline)
                looked = self._find_settings(driver, pollers=pollers)
                servers.log_new(await arun(driver, looked, deadline=servers.until(deadline)))
                await self._declare_recurring(self._tasks.registered)

                def started() -> Dispatcher:
                    routes, loader = self._new_routes(pollers, subscriber), self._new_loader(pollers)
                    cache = self._map()
                    dispatcher = self._factory.dispatcher(pollers, cache, subscriber, elsewhere=routes, loader=loader)
                    dispatcher.start(deadline)
                    return dispatcher

                if True:  # ASYNC
                    self._running.dispatcher = await made_in_thread(started, Dispatcher.stop)
                else:
                    self._running.dispatcher = started()

    async def stop(self) -> None:
        """Ends this process's pollers; other processes take their shards over at once.

        >>> await engine.stop()
        """
        async with self._here():
            dispatcher, self._running.dispatcher = self._running.dispatcher, None
            if dispatcher is not None:
                if True:  # ASYNC
                    await ended_in_thread(dispatcher.stop)
                else:
                    dispatcher.stop()

    if True:  # ASYNC

        async def _open_beside(self, deadline: float) -> tuple[Driver, Subscriber]:
            """The connections of what runs in threads. The lock is held."""
            threads = await self._open_threads(deadline)
            return threads.driver, threads.subscriber

        async def _open_threads(self, deadline: float) -> Threads:
            """The lock is held."""
            if self._threads is None:
                self._check_not_closed()
                self._threads = await self._new_threads((await self._connect(deadline)).settings, deadline)
            return self._threads

        def _present_subscriber(self) -> Subscriber | None:
            return self._threads.subscriber if self._threads else None
    else:

        def _open_beside(self, deadline: float) -> tuple[Driver, Subscriber]:
            """The connections of what runs in threads. The lock is held."""
            driver = self._open_driver(deadline)
            if self._subscriber is None:
                self._subscriber = Subscriber(driver)
            return driver, self._subscriber

        def _present_subscriber(self) -> Subscriber | None:
            return self._subscriber

    async def _open_wakeups(self, deadline: float) -> Wakeups:
        wakeups = self._wakeups
        if wakeups is None:
            async with self._held(deadline):
                driver, subscriber = await self._open_beside(deadline)
                wakeups = self._wakeups
                if wakeups is None:
                    if True:  # ASYNC
                        wakeups = await made_in_thread(lambda: Wakeups(driver, self._map(), subscriber), Wakeups.close)
                    else:
                        wakeups = Wakeups(driver, self._map(), subscriber)
                    self._wakeups = wakeups
        return wakeups

    # ---- pushing

    async def _push_durably(self, entries: Entries, deadline: float, durability: Durability) -> list[Receipt]:
        check_durability(durability)
        driver, cache = await self._open_driver(deadline), self._map()
        steps = pushing.push(cache, self._packer, entries)
        if True:  # ASYNC
            return await self._in_thread(push_durably, driver, entries, steps, durability, deadline)
        else:
            return push_durably(driver, cache, entries.ids, steps, durability, deadline)

    if True:  # ASYNC

        async def _push_together(self, entries: Entries, deadline: float, durability: Durability) -> Outcomes:
            driver = await self._open_driver(deadline)
            steps = pushing.push(self._map(), self._packer, entries)
            return await self._in_thread(push_together, driver, entries, steps, durability, deadline)

        async def _in_thread(
            self,
            push: Callable[..., T],
            driver: AsyncDriver,
            entries: Entries,
            steps: Operation[list[Receipt]],
            durability: Durability,
            deadline: float,
        ) -> T:
            """A durable push: a WAIT on the loop's shared connections would delay every other caller."""
            driver.check_open()
            async with self._held(deadline):
                threads = await self._open_threads(deadline)
            begun = partial(push, threads.driver, self._map(), entries.ids, steps, durability, deadline)
            return await asyncio.get_running_loop().run_in_executor(threads.durable_pushes, begun)

    if TYPE_CHECKING or True:  # ASYNC
        pass
    else:

        def buffered(self) -> Buffer:
            """Returns a buffer that coalesces the pushes of many threads. Each push gets a Pending, which tells when
            its task is stored.

            Tasks that are pushed while one batch is sent go with the next. Close the buffer, or use it in a ``with``
            block, to send the rest: what is still in it when the engine is closed or the program ends is sent then, if
            that can be done, with a ResourceWarning.

            >>> with engine.buffered() as buffer:
            ...     pending = buffer.push({"order": 42}, delay=60)
            """
            if self._spool is None:
                self._open_driver(self._deadline())
            return Buffer(self._packed, self._send, owner=self, timeout=self._options.timeout)

        def _packed(self, payload: Any, options: dict[str, Any]) -> Entries:
            task = payload if isinstance(payload, Task) and not options else Task(payload, **options)
            return self._pusher.packed(task)

        def _send(self, entries: Entries) -> list[Receipt]:
            return self._store.push(entries, self._deadline())

    # ---- consumers and workers

    def consumer(
        self,
        topics: Topics = "",
        *,
        lease: float = DEFAULT_LEASE_S,
        name: str | None = None,
        prefetch: bool = False,
    ) -> AsyncConsumer:
        """Returns a consumer of a topic, or of several in their order of priority; of the default topic if none is
        given. A mapping such as ``{"high": 5, "low": 1}`` shares by weight instead, so that low ones are not starved. A
        forwarded or paused topic gives out nothing until that ends; the log tells when all topics are forwarded.

        ``prefetch=True`` is for a stream of quick tasks: while the program works, its next claim is under way. What is
        claimed ahead is at most the work of some milliseconds, its leases run, a pause does not take it back, and
        ``close()`` gives it back.

        >>> consumer = engine.consumer(["urgent", "mail"], lease=60)
        """
        make_claims = self._claims(topics, lease, name)
        if True:  # ASYNC
            self._check_not_closed()

            async def opened(deadline: float) -> tuple[AsyncDriver, Claims, BackgroundTasks]:
                driver = await self._open_driver(deadline)
                return driver, make_claims(), self._background

            ahead = Ahead[Trip](lease) if prefetch else None
            return AsyncConsumer(opened, self._open_wakeups, checked_topics(topics)[0], self._options.timeout, ahead)
        else:
            driver = self._open_driver(self._deadline())
            return Consumer(driver, make_claims(), self._open_wakeups, self._open_ahead_watch() if prefetch else None)

    if False:  # ASYNC

        def _open_ahead_watch(self) -> AheadWatch:
            with self._here():
                if self._ahead_watch is None:
                    self._ahead_watch = AheadWatch()
                return self._ahead_watch

    if True:  # ASYNC

        def worker(
            self,
            topics: Topics | None = None,
            *,
            concurrency: int = DEFAULT_CONCURRENCY,
            lease: float = DEFAULT_LEASE_S,
            grace: float = DEFAULT_GRACE_S,
            max_attempts: int | None = None,
            backoff: Backoff | None = None,
            name: str | None = None,
        ) -> AsyncWorker:
            """Runs the engine's tasks, and handlers of its own: register those with ``@worker.on(topic)`` or
            ``@worker.task``, then ``await worker.run()``. The options are those of ``Engine.worker``.

            There is no ``processes=``: a process with a running loop can't be forked. ``shardq work --processes`` runs
            this worker in several, each with a loop of its own.

            >>> worker = engine.worker(["urgent", "mail"], concurrency=32)
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
    else:

        def worker(
            self,
            topics: Topics | None = None,
            *,
            concurrency: int = DEFAULT_CONCURRENCY,
            processes: int = 1,
            lease: float = DEFAULT_LEASE_S,
            grace: float = DEFAULT_GRACE_S,
            max_attempts: int | None = None,
            backoff: Backoff | None = None,
            name: str | None = None,
        ) -> Worker:
            """Runs the engine's tasks, and handlers of its own: register those with ``@worker.on(topic)`` or
            ``@worker.task``, then ``worker.run()``.

            ``concurrency`` handlers at once in each of ``processes``; ``lease``: how long a task whose worker died
            waits for another; ``grace``: how long handlers may finish when the worker stops.

            ``topics``: the only topics to serve: one, several in order of priority, or ``{name: weight}`` to share by
            weight. None given: every topic of its own handlers, in the order of registration, and then of all tasks
            that the engine has when the worker runs.

            >>> worker = engine.worker(["urgent", "mail"], concurrency=32)
            """
            return Worker(
                self.push,
                self._tasks,
                self._processor,
                topics=topics,
                concurrency=concurrency,
                processes=processes,
                lease=lease,
                grace=grace,
                max_attempts=max_attempts,
                backoff=backoff,
                name=name,
            )

    async def _processor(self, plan: Plan) -> Processor:
        """The running part of a worker; ``AsyncWorker.run`` calls it, in its child processes too."""
        from shardq.worker.processor import Processor  # here: it brings asyncio, for coroutine functions

        await self.open()
        await self._declare_recurring(plan.functions)
        claims = self._planned_claims(plan)
        deadline = self._deadline()
        if True:  # ASYNC
            loop = asyncio.get_running_loop()
            opened = await self._open_wakeups(deadline)
            async with self._held(deadline):
                driver, _ = await self._open_beside(deadline)
            return self._running.add(Processor(driver, claims, lambda deadline: opened, plan, loop=loop))
        driver = self._open_driver(deadline)
        return self._running.add(Processor(driver, claims, self._open_wakeups, plan, loop=None))
