# Generated from aio.py by `make fmt`: change that one.
"""The engine: how it is opened, started, stopped and closed, and its consumers and workers.

Pollers are threads for both flavours: they sleep exactly, whatever the event loop is busy with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self

from shardq.core.consumer import Consumer
from shardq.core.consumer.prefetch import AheadWatch
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.dispatcher import Dispatcher
from shardq.core.drivers.sync import Driver
from shardq.core.locks import Permits
from shardq.core.model.checks import Topics
from shardq.core.model.task import Receipt, Task
from shardq.core.operation import run
from shardq.core.producer import buffer, pushing
from shardq.core.producer.buffer import Buffer
from shardq.core.producer.durable import Durability, check_durability, push_durably
from shardq.core.producer.packing import Entries
from shardq.core.subscriber import Subscriber
from shardq.engine import servers
from shardq.engine.operator_sync import OperatorCommands
from shardq.engine.options import DEFAULT_LEASE_S
from shardq.errors import ServerFault, Unavailable
from shardq.worker import Backoff, Worker
from shardq.worker.base import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S
from shardq.worker.handlers import Plan

if TYPE_CHECKING:
    from shardq.worker.processor import Processor


class Engine(OperatorCommands):
    """A delay engine: push tasks with a due time, and have them dispatched at that time.

    It opens itself at its first use, or in a block of ``with``; ``start()`` runs pollers in this process. Forked
    processes may share an engine: in the child it is like one that was never opened.

    ``Engine`` is for threads, which may share it. Its twin for asyncio belongs to the event loop that opens it, whose
    coroutines may share it: what they push at the same time shares calls. When the loop ends without ``close()``,
    another takes the engine over with ``open()``; pollers run on meanwhile. Both can do the same, but ``buffered()`` is
    for threads alone: it coalesces their pushes.

    >>> with shardq.Engine("redis://127.0.0.1:6379/0", name="orders") as engine:
    ...     engine.start()
    ...     id = engine.push({"order": 42}, delay=1800)
    """

    def _forked(self) -> None:
        super()._forked()
        self._wakeups: Wakeups | None = None
        self._turn = Permits(1)
        """Out while opening, starting, stopping and closing."""
        self._subscriber: Subscriber | None = None
        self._ahead_watch: AheadWatch | None = None

    # ---- opening and closing

    def open(self) -> Self:
        """Connects, and creates the name when it is new. Called by every first use; again after close().

        >>> engine.open()
        """
        deadline = self._deadline()
        with self._held(deadline):
            self._closed = False
            try:
                self._connect(deadline)
            except ServerFault as exc:
                if not self._can_spool(exc):
                    raise
        return self

    def _here(self) -> AbstractContextManager[None]:
        return self._held(math.inf)

    @contextmanager
    def _held(self, deadline: float) -> Iterator[None]:
        """Holds the lock. Raises Unavailable when others hold it until the deadline."""
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
            self._turn.give(permit)

    def _connect(self, deadline: float) -> Driver:
        """Opens the engine, if it is not open. The lock is held."""
        driver = self._redis.driver
        if driver is None:
            if self._spool is not None:
                self._spool.resume()
            settings, self._embedded = self._entered()
            driver = self._factory.driver(settings)
            try:
                driver.open(deadline)
                topology = run(driver, self._options.create_topology(), deadline=deadline)
                cache = self._new_map(topology)
                if self._redis.driver is None:  # unless a signal's handler has opened the engine meanwhile
                    self._cache = cache
                servers.log_new(run(driver, self._find_settings(driver), deadline=servers.until(deadline)))
                self._watch_masters(driver)
            except BaseException:
                driver.close()
                self._leave()
                raise
            if (opened := self._redis.driver) is not None:  # by such a handler
                driver.close()
                return opened
            self._redis.use(driver)
        return driver

    def _open_driver(self, deadline: float) -> Driver:
        driver = self._redis.driver
        if driver is None:
            self._check_not_closed()
            began = time.monotonic()
            with self._held(deadline):
                self._check_not_closed()
                if self._redis.driver is None and self._spool is not None:
                    self._spool.check_since(began)
                driver = self._connect(deadline)
        return driver

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

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- pollers

    def start(self) -> None:
        """Runs pollers in this process, for its share of the shards. Returns when they run. A call of
        asyncio that is cancelled leaves none running.

        Each shard takes a connection. The log and ``health().warnings`` tell when ``ulimit -n`` or a server's
        ``maxclients`` is too low for all shards.

        >>> engine.start()
        """
        deadline = self._deadline()
        with self._held(deadline):
            self._closed = False
            driver = self._connect(deadline)
            if self._running.dispatcher is None:
                pollers, subscriber = self._open_beside(deadline)
                looked = self._find_settings(driver, pollers=pollers)
                servers.log_new(run(driver, looked, deadline=servers.until(deadline)))
                self._declare_recurring(self._tasks.registered)

                def started() -> Dispatcher:
                    routes, loader = self._new_routes(pollers, subscriber), self._new_loader(pollers)
                    cache = self._map()
                    dispatcher = self._factory.dispatcher(pollers, cache, subscriber, elsewhere=routes, loader=loader)
                    dispatcher.start(deadline)
                    return dispatcher

                self._running.dispatcher = started()

    def stop(self) -> None:
        """Ends this process's pollers; other processes take their shards over at once.

        >>> engine.stop()
        """
        with self._here():
            dispatcher, self._running.dispatcher = self._running.dispatcher, None
            if dispatcher is not None:
                dispatcher.stop()

    def _open_beside(self, deadline: float) -> tuple[Driver, Subscriber]:
        """The connections of what runs in threads. The lock is held."""
        driver = self._open_driver(deadline)
        if self._subscriber is None:
            self._subscriber = Subscriber(driver)
        return driver, self._subscriber

    def _present_subscriber(self) -> Subscriber | None:
        return self._subscriber

    def _open_wakeups(self, deadline: float) -> Wakeups:
        wakeups = self._wakeups
        if wakeups is None:
            with self._held(deadline):
                driver, subscriber = self._open_beside(deadline)
                wakeups = self._wakeups
                if wakeups is None:
                    wakeups = Wakeups(driver, self._map(), subscriber)
                    self._wakeups = wakeups
        return wakeups

    # ---- pushing

    def _push_durably(self, entries: Entries, deadline: float, durability: Durability) -> list[Receipt]:
        check_durability(durability)
        driver, cache = self._open_driver(deadline), self._map()
        steps = pushing.push(cache, self._packer, entries)
        return push_durably(driver, cache, entries.ids, steps, durability, deadline)

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
    ) -> Consumer:
        """Returns a consumer of a topic, or of several in their order of priority; of the default topic if none is
        given. A mapping such as ``{"high": 5, "low": 1}`` shares by weight instead, so that low ones are not starved. A
        forwarded or paused topic gives out nothing until that ends; the log tells when all topics are forwarded.

        ``prefetch=True`` is for a stream of quick tasks: while the program works, its next claim is under way. What is
        claimed ahead is at most the work of some milliseconds, its leases run, a pause does not take it back, and
        ``close()`` gives it back.

        >>> consumer = engine.consumer(["urgent", "mail"], lease=60)
        """
        make_claims = self._claims(topics, lease, name)
        driver = self._open_driver(self._deadline())
        return Consumer(driver, make_claims(), self._open_wakeups, self._open_ahead_watch() if prefetch else None)

    def _open_ahead_watch(self) -> AheadWatch:
        with self._here():
            if self._ahead_watch is None:
                self._ahead_watch = AheadWatch()
            return self._ahead_watch

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

    def _processor(self, plan: Plan) -> Processor:
        """The running part of a worker; ``Worker.run`` calls it, in its child processes too."""
        from shardq.worker.processor import Processor  # here: it brings asyncio, for coroutine functions

        self.open()
        self._declare_recurring(plan.functions)
        claims = self._planned_claims(plan)
        deadline = self._deadline()
        driver = self._open_driver(deadline)
        return self._running.add(Processor(driver, claims, self._open_wakeups, plan, loop=None))
