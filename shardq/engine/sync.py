"""The engine for threads. Its asyncio twin is ``aio``; they differ in the awaiting, and in what only threads need."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from shardq import operation, recovery
from shardq.consumer import Consumer
from shardq.consumer.waiting.wakeups import Wakeups
from shardq.dispatcher import Dispatcher
from shardq.drivers.sync import Driver
from shardq.embedded import Fsync
from shardq.engine import advice, control
from shardq.engine.core import check_batch, checked_id, moved_due
from shardq.engine.operator_commands import OperatorCommands
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
from shardq.model.checks import MAX_PAYLOAD, check_seconds, due_spec
from shardq.model.record import Codec
from shardq.model.task import OnConflict, Outcome, Receipt, Task, TaskInfo
from shardq.producer import by_id, pushing
from shardq.producer.buffer import Buffer
from shardq.producer.durable import Durability, check_durability, push_durably
from shardq.producer.packing import BATCH, Entries, each_task
from shardq.producer.stream import Stream
from shardq.subscriber import Subscriber
from shardq.worker import Backoff, Worker
from shardq.worker.base import DEFAULT_CONCURRENCY, DEFAULT_GRACE_S, Plan

if TYPE_CHECKING:
    from shardq.worker.processor import Processor


class Engine(OperatorCommands):
    """A delay engine: push tasks with a due time, and have them dispatched at that time.

    It opens itself at its first use, or in a ``with`` block; ``start()`` runs pollers in this process. Threads may
    share one. So may processes that are forked: in the child it is as one that was never opened.

    >>> with shardq.Engine("redis://127.0.0.1:6379/0", name="orders") as engine:
    ...     engine.start()
    ...     id = engine.push({"order": 42}, delay=1800)
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
        self._driver: Driver | None = None
        self._dispatcher: Dispatcher | None = None
        self._subscriber: Subscriber | None = None
        self._wakeups: Wakeups | None = None
        self._lock = threading.RLock()
        """Held while opening, starting, stopping and closing."""

    # ---- opening and closing

    def open(self) -> Self:
        """Connects, and creates the name when it is new. Called by every first use; again after close()."""
        with self._lock:
            self._closed = False
            if self._driver is None:
                settings, self._embedded = self._entered()
                driver = Driver(settings)
                try:
                    driver.open()
                    self._learn(operation.run(driver, recovery.create_topology(self.name, self.options.shards)))
                    advice.say(operation.run(driver, self._advice(driver), advice.TIMEOUT_S))
                except BaseException:
                    driver.close()
                    self._leave()
                    raise
                self._driver = driver
        return self

    def close(self) -> None:
        """Stops the pollers, closes every connection, and leaves the embedded server. Pushed tasks stay."""
        with self._lock:
            self.stop()
            self._closed = True
            driver, self._driver = self._driver, None
            wakeups, self._wakeups = self._wakeups, None
            subscriber, self._subscriber = self._subscriber, None
            if wakeups is not None:
                wakeups.close()
            if subscriber is not None:
                subscriber.close()
            if driver is not None:
                driver.close()
            self._leave()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Runs pollers in this process, for its share of the shards. Returns when they run.

        Each shard takes a connection. Where the limit of open files of this process (``ulimit -n``) or the servers'
        ``maxclients`` would not do for all shards, the log says so, and ``stats().warnings``.
        """
        with self._lock:
            self.open()
            if self._dispatcher is None:
                driver = self._open_driver()
                advice.say(operation.run(driver, self._advice(driver, pollers=driver), advice.TIMEOUT_S))
                dispatcher = Dispatcher(
                    driver,
                    self._map(),
                    self._open_subscriber(),
                    max_attempts=self.options.max_attempts,
                    keep=self.options.keep(),
                )
                dispatcher.start()
                self._dispatcher = dispatcher

    def stop(self) -> None:
        """Ends this process's pollers; other processes take their shards over at once."""
        with self._lock:
            dispatcher, self._dispatcher = self._dispatcher, None
            if dispatcher is not None:
                dispatcher.stop()

    def _open_driver(self) -> Driver:
        driver = self._driver
        if driver is None:
            self._check_not_closed()
            self.open()
            driver = self._driver
            assert driver is not None, "open() makes a driver or raises"
        return driver

    # ---- pushing

    def push(
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
            return self._push_durably(entries, durability)[0]
        driver = self._open_driver()
        return operation.run(driver, pushing.push_one(self._map(), self._packer, entries))

    def _push_durably(self, entries: Entries, durability: Durability, batch: int = BATCH) -> list[Receipt]:
        check_durability(durability)
        driver, cache = self._open_driver(), self._map()
        steps = pushing.push(cache, self._packer, entries, most=batch)
        return push_durably(driver, cache, entries.ids, steps, durability)

    def push_many(
        self, tasks: Iterable[Task], *, batch: int = BATCH, durability: Durability | None = None
    ) -> list[Receipt]:
        """Stores many tasks; returns their ids in order. All are checked before the first is sent.

        All or nothing for each batch of at most ``batch`` tasks of one shard; raises PushError when not all are stored.
        """
        entries = self._packed_many(tasks, batch)
        if durability is not None:
            return self._push_durably(entries, durability, batch)
        driver = self._open_driver()
        return operation.run(driver, pushing.push(self._map(), self._packer, entries, most=batch))

    def push_iter(self, tasks: Iterable[Task], *, batch: int = BATCH) -> Iterator[list[Receipt]]:
        """Stores any number of tasks in bounded memory, yielding the ids of those stored, in order.

        Tasks are packed while the servers work on earlier ones. A wrong task raises its error after everything before
        its window of some thousand tasks is stored and yielded; of that window nothing is sent. A window that is not
        stored as a whole ends the taking: what is under way is finished and yielded, then PushError tells the rest.
        """
        check_batch(batch)
        source = each_task(tasks)
        driver = self._open_driver()
        stream = Stream(self._map(), self._packer, source, batch)
        for answered, result in driver.call_all(stream.calls()):
            stream.note(answered, result)
            for window in stream.finished():
                if (receipts := operation.run(driver, stream.completed(window))) is not None:
                    yield receipts
        for window in stream.finished():
            if (receipts := operation.run(driver, stream.completed(window))) is not None:
                yield receipts
        stream.check()

    def buffered(self, *, linger: float = 0.0) -> Buffer:
        """Coalesces the pushes of many threads; each gets a Pending that tells when its task is stored.

        What comes while one sending is under way goes with the next; ``linger``: seconds to wait for more company than
        that. Close it, or use it in a ``with`` block, to send the rest.
        """
        check_seconds(linger, "linger", most=60)
        self._open_driver()

        def send(entries: Entries) -> list[Receipt]:
            driver = self._open_driver()
            return operation.run(driver, pushing.push(self._map(), self._packer, entries, most=BATCH))

        return Buffer(self._packed, send, linger=linger)

    # ---- by id

    def cancel(self, id: str) -> Outcome:
        """Removes a task that nobody holds: cancelled, running, gone, or unknown when an answer was lost."""
        checked_id(id)
        driver = self._open_driver()
        return operation.run(driver, by_id.cancel(self._map(), id))

    def reschedule(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Gives a task that nobody holds another due time: moved, running, dead, gone, or unknown when an answer was
        lost.
        """
        checked_id(id)
        due = moved_due(delay, at)
        driver = self._open_driver()
        return operation.run(driver, by_id.reschedule(self._map(), id, due))

    def requeue(
        self, id: str, *, delay: float | dt.timedelta | None = None, at: float | dt.datetime | None = None
    ) -> Outcome:
        """Schedules a dead task again, with all its attempts: requeued, what it is instead, or unknown when an answer
        was lost.
        """
        checked_id(id)
        due = due_spec(delay, at)
        driver = self._open_driver()
        return operation.run(driver, by_id.requeue(self._map(), id, due))

    def get(self, id: str) -> TaskInfo | None:
        """Returns the state of a task; None when it is gone."""
        checked_id(id)
        driver = self._open_driver()
        return operation.run(driver, by_id.get(self._map(), id, self.options.codec))

    # ---- the whole

    def stats(self) -> Stats:
        """Counts for each shard and in total. No snapshot: shards are seen one after the other, and one that can't be
        seen says why.
        """
        driver = self._open_driver()
        timeout = min(self.options.timeout, STATS_TIMEOUT_S)
        counts_by_shard = operation.run(driver, control.count_shards(self._map(), self._topics_of_shard), timeout)
        nodes = {keys.slot: driver.node_of(keys.slot) for keys, _ in counts_by_shard}
        return self._stats(
            counts_by_shard,
            nodes,
            self._dispatcher,
            replication=operation.run(driver, control.replication(counts_by_shard, nodes), timeout),
            advised=operation.run(
                driver, self._advice(driver, counts_by_shard, pollers=driver if self._dispatcher else None), timeout
            ),
            subscriber=self._subscriber,
            server=driver.server_version,
            connections=driver.connections(),
        )

    def consumer(
        self,
        *names: str,
        topics: Mapping[str, int] | None = None,
        lease: float = DEFAULT_LEASE_S,
        name: str | None = None,
    ) -> Consumer:
        """Claims tasks of these topics, in this order of priority; of the default topic when none is given.

        ``topics={"high": 5, "low": 1}`` shares by weight instead, so that low ones are not starved. Of a topic that is
        forwarded or paused nothing is given out until that ends; the log says so of a forwarded one.
        """
        driver = self._open_driver()
        return Consumer(driver, self._claims(names, topics, lease, name), self._open_wakeups)

    def worker(
        self,
        *,
        topics: Mapping[str, int] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        processes: int = 1,
        lease: float = DEFAULT_LEASE_S,
        grace: float = DEFAULT_GRACE_S,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        name: str | None = None,
    ) -> Worker:
        """Runs handlers: register them with ``@worker.on(topic)`` or ``@worker.task``, then ``worker.run()``.

        ``concurrency`` handlers at once in each of ``processes``; ``lease``: how long a task whose worker died waits
        for another; ``grace``: how long handlers may finish when the worker stops; ``topics={name: weight}``: shares in
        place of the order of registration.
        """
        return Worker(
            self.push,
            self._processor,
            topics=topics,
            concurrency=concurrency,
            processes=processes,
            lease=lease,
            grace=grace,
            max_attempts=self.options.max_attempts if max_attempts is None else max_attempts,
            backoff=backoff,
            name=name,
        )

    def _processor(self, plan: Plan) -> Processor:
        """The running part of a worker; ``Worker.run`` calls it, in its child processes too."""
        from shardq.worker.processor import (
            Processor,  # here: it brings asyncio, for handlers that are coroutine functions
        )

        self.open()
        driver = self._open_driver()
        names = () if plan.weights else tuple(plan.handlers)
        claims = self._claims(names, plan.weights, plan.lease, plan.name, plan.types, plan.attempts)
        consumer = Consumer(driver, claims, self._open_wakeups)
        return self._noted(Processor(driver, claims, consumer, plan, loop=None))

    def _open_subscriber(self) -> Subscriber:
        with self._lock:
            if self._subscriber is None:
                self._subscriber = Subscriber(self._open_driver())
            return self._subscriber

    def _open_wakeups(self) -> Wakeups:
        with self._lock:
            if self._wakeups is None:
                self._wakeups = Wakeups(self._open_driver(), self._map(), self._open_subscriber())
            return self._wakeups
