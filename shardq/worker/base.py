"""The common base of both workers: their handlers and their limits. No I/O."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Never, TypedDict, TypeVar, Unpack, overload

from shardq.core.consumer.policy import Backoff
from shardq.core.forks import OfOneProcess
from shardq.core.locks import SignalSafeEvent
from shardq.core.model.checks import (
    Topics,
    check_name,
    check_seconds,
    check_topic,
    checked_topics,
    duration_ms,
    is_seconds,
)
from shardq.core.model.printable import quoted
from shardq.core.model.task import Delivery, refuse_unknown
from shardq.delivery.batch import Batch
from shardq.delivery.functions import check_function
from shardq.delivery.handler import Batching
from shardq.delivery.hooks import Hooks
from shardq.errors import InvalidOption, ShardqError
from shardq.worker.functions import check_takes, payload_of
from shardq.worker.handlers import Attempts, Plan, Registry, TaskFunction, TopicFunction
from shardq.worker.lifecycle import Lifecycle
from shardq.worker.named import TaskDecorator

if TYPE_CHECKING:
    from shardq.worker.processor import Processor

H = TypeVar("H", bound=Callable[[Delivery], Any])
B = TypeVar("B", bound=Callable[[Batch[Any]], Any])
F = TypeVar("F", bound=Callable[[], Any])
T = TypeVar("T")

DEFAULT_CONCURRENCY = 16
DEFAULT_GRACE_S = 30.0

MOST_BATCH = 1000
"""The most tasks of a batch: what one script gives."""

LONGEST_LINGER_S = 60.0
"""The longest wait for a batch to fill: who waits longer for its tasks has a schedule."""


class WorkerOptions(TypedDict):
    """The options of ``engine.worker``."""

    topics: Topics | None
    concurrency: int
    lease: float
    grace: float
    max_attempts: int | None
    backoff: Backoff | None
    name: str | None


class WorkerBase(TaskDecorator[T], OfOneProcess):
    """The base of ``Worker`` and ``AsyncWorker``."""

    def __init__(self, push: Callable[..., T], tasks: Registry, **options: Unpack[WorkerOptions]) -> None:
        concurrency, topics, name = options["concurrency"], options["topics"], options["name"]
        _check_concurrency(concurrency)
        check_seconds(options["grace"], "grace")
        self._topics: tuple[str, ...] | None = None
        self._weights: Mapping[str, int] | None = None
        if topics is not None:
            self._topics, self._weights = checked_topics(topics)
        duration_ms(options["lease"], "lease")
        if name is not None:
            check_name(name, of="worker")
        self.concurrency = concurrency
        self.grace: float = options["grace"]
        self.lease: float = options["lease"]
        self.name = name
        self._push = push
        self._tasks = tasks
        self._chosen: list[str] | None = None
        """The only ones of its topics that it serves; None: all."""
        self._registry = Registry(max_attempts=options["max_attempts"], backoff=options["backoff"])
        self._hooks = Hooks()
        self._lifecycle = Lifecycle()
        self._stop = SignalSafeEvent()
        self._hurry = SignalSafeEvent()
        self._at_work: Processor | None = None
        self._running = threading.Lock()
        """Held while it runs."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._served()}, {self.concurrency} at once>"

    @overload
    def on(
        self,
        topic: str,
        *,
        type: Any = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
    ) -> Callable[[H], H]: ...

    @overload
    def on(
        self,
        topic: str,
        *,
        batch: int,
        linger: float | dt.timedelta = 0,
        concurrency: int | None = None,
        isolate: bool = True,
        type: Any = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
    ) -> Callable[[B], B]: ...

    def on(
        self,
        topic: str,
        *,
        batch: int | None = None,
        linger: float | dt.timedelta | None = None,
        concurrency: int | None = None,
        isolate: bool | None = None,
        type: Any = None,
        timeout: float | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        **unknown: Never,
    ) -> Any:
        """Decorates the function, or coroutine function, that handles a topic; "" is the default topic.

        The order of registration is the order of priority; the engine's tasks come after the worker's own handlers.
        ``type``: a msgspec Struct, dataclass, TypedDict, pydantic model or the like that payloads are decoded into; one
        that does not fit is a failed attempt, which names the field.
        ``timeout``: the seconds that a handler may take; after that, the attempt has failed. A coroutine is cancelled;
        a function's thread can't be ended, so it runs on as a stray.
        ``max_attempts`` applies to tasks that have no limit of their own; ``backoff`` says when a failed one comes
        again.

        A handler that returns unfinished work, such as a coroutine, a generator or a future, has failed. Each call has
        a context (``contextvars``) of its own, which is empty at first; a ``threading.local`` belongs to its thread.

        >>> @worker.on("mail", timeout=60, max_attempts=5)
        ... def send(delivery):
        ...     print(delivery.payload, delivery.attempt)

        ``batch``: a call gets up to so many tasks at once, 1 to 1,000, as a ``shardq.Batch``. It takes those that are
        ready, or waits up to ``linger`` seconds, 0 to 60, for a full one; nothing is leased meanwhile. At most
        ``concurrency`` calls run at once in a process, within the worker's. If a call raises, it is repeated with parts
        of the batch until the task is found that makes it fail; with ``isolate=False`` all of them fail. ``timeout`` is
        that of a call.

        >>> @worker.on("events", batch=500, linger=0.2, concurrency=2)
        ... def store(batch):
        ...     with database.begin() as transaction:
        ...         transaction.insert(events, batch.payloads)
        """

        if callable(topic):
            raise InvalidOption(
                f'@worker.on needs a topic: write @worker.on("…") above {quoted(topic)}; "" is the default one'
            )
        if "batch_by" in unknown:
            raise InvalidOption(
                "batch_by= is not possible: a key gives out one task at a time, or as many as engine.limit(topic, "
                "per_key=) allows, so a batch of one key would have no more; leave it out, and group the deliveries of "
                "a batch by delivery.key"
            )
        refuse_unknown("@worker.on", unknown)
        check_topic(topic)
        if type is not None:
            payload_of(type)
        attempts = Attempts(timeout=timeout, max_attempts=max_attempts, backoff=backoff)
        batching = _batching(batch, linger, concurrency, isolate)

        def register(handler: Any) -> Any:
            self._check_idle()
            check_function(handler, "a handler")
            check_takes(handler, "delivery" if batching is None else "batch")
            registered = TopicFunction(topic=topic, function=handler, type=type, attempts=attempts, batching=batching)
            self._tasks.check(registered)
            self._registry.add(registered)
            return handler

        return register

    @property
    def healthy(self) -> bool:
        """True while it runs and nothing of it is dead or failing: neither a thread that claims, settles or extends
        leases, nor the loop for coroutines, and it claims for all of its handlers; ``problems`` says why not.
        """
        processor = self._at_work
        return processor is not None and not processor.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """The reasons why it is not ``healthy`` while it runs in this process, a sentence each."""
        processor = self._at_work
        return () if processor is None else processor.problems

    @property
    def strays(self) -> Mapping[str, int]:
        """Handlers that run on in this process although their tasks were ended, by name: functions that have timed out,
        or lost their lease, and coroutines that swallow their cancellation. They keep no place. With 16 of them (or as
        many as ``concurrency``, if that is more), the worker stops claiming the topic until some end.
        """
        processor = self._at_work
        return {} if processor is None else processor.strays

    def use(self, middleware: object) -> None:
        """Calls the object's before(delivery), after(delivery) and error(delivery, exception), as far as it has
        them, with payloads as the codec gave them. ``after`` also follows a handler that has snoozed its task, which is
        no failure.

        >>> class Log:
        ...     def before(self, delivery): print(delivery.id)
        >>> worker.use(Log())
        """
        self._hooks.use(middleware)

    def on_startup(self, function: F) -> F:
        """Decorates a function, or coroutine function, without arguments, that is called before the first task: with
        ``processes=`` in each of them. They are called in the order of registration. If one raises, ``run`` raises
        that, and claims nothing.

        A coroutine function runs on the event loop of the handlers, so that the clients it makes are of that loop.

        >>> @worker.on_startup
        ... async def connect():
        ...     global pool
        ...     pool = await asyncpg.create_pool(DATABASE)
        """
        self._check_idle()
        self._lifecycle.on_startup(function)
        return function

    def on_shutdown(self, function: F) -> F:
        """Decorates a function, or coroutine function, without arguments, that is called when the handlers have ended,
        the last registered first. They are called if all ``on_startup`` functions were. If one raises, that is logged,
        and the others are called. Nothing bounds them, but a second signal, which cancels coroutines.

        >>> @worker.on_shutdown
        ... async def disconnect():
        ...     await pool.close()
        """
        self._check_idle()
        self._lifecycle.on_shutdown(function)
        return function

    def _add_task(self, task: TaskFunction) -> None:
        self._check_idle()
        self._tasks.check(task)
        self._registry.add(task)

    def _push_task(self) -> Callable[..., T]:
        return self._push

    def _check_idle(self) -> None:
        if self._running.locked():
            raise ShardqError(
                "this worker runs already, and would not serve what is registered now: register each handler before "
                "run(), or stop() the worker first"
            )

    @contextmanager
    def _run_once(self) -> Iterator[None]:
        """The time in which it runs: two runs would share its ``stop()``, and what it tells of itself."""
        if not self._running.acquire(blocking=False):
            raise ShardqError(
                "this worker runs already, and runs once at a time; give it more concurrency=, or make another with "
                "engine.worker()"
            )
        try:
            yield
        finally:
            # Not at the beginning: a stop() that comes before run() counts.
            self._stop.clear()
            self._hurry.clear()
            self._running.release()

    def _served(self) -> list[str]:
        """The topics that it serves, in their order of priority."""
        return list(
            dict.fromkeys((*self._registry.handlers, *self._tasks.handlers) if self._topics is None else self._topics)
        )

    def _plan(self) -> Plan:
        """Returns the checked plan: there is something to do."""
        served = self._served()
        registry = self._registry.joined([task for task in self._tasks.registered if task.topic in served])
        handlers = registry.handlers
        if not handlers:
            raise InvalidOption(
                "the worker has no handler, and its engine no task; register one with @worker.on(topic) or @engine.task"
            )
        if handlers.keys() != set(served):
            raise InvalidOption(
                f"topics= names {served}; it must name every topic that this worker has a handler for, "
                f"{list(self._registry.handlers)}, and no others but those of the engine's tasks, "
                f"{list(self._tasks.handlers)}"
            )
        for each in registry.registered:
            if isinstance(each, TaskFunction):
                each.arguments.check()
        around = self._tasks.around
        plan = Plan(
            handlers={topic: handlers[topic] if around is None else around(handlers[topic]) for topic in served},
            functions=tuple(registry.registered),
            hooks=self._hooks,
            weights=self._weights,
            concurrency=self.concurrency,
            lease=self.lease,
            name=self.name,
        )
        return plan if self._chosen is None else plan.of(self._chosen)


def _check_concurrency(concurrency: int) -> None:
    if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= 100_000:
        raise InvalidOption(f"concurrency={quoted(concurrency)} is not possible; give an int from 1 to 100,000")


def _batching(
    batch: int | None, linger: float | dt.timedelta | None, concurrency: int | None, isolate: bool | None
) -> Batching | None:
    """How a handler of batches is called, checked; None for a handler of single tasks."""
    if batch is None:
        given = {"linger": linger, "concurrency": concurrency, "isolate": isolate}
        for name in (name for name, value in given.items() if value is not None):
            instead = "; the worker has concurrency=, and engine.limit(topic, concurrency=) is for the whole fleet"
            raise InvalidOption(
                f"{name}= is for handlers of batches: give batch= too, such as batch=500"
                f"{instead if name == 'concurrency' else ''}"
            )
        return None
    if not isinstance(batch, int) or isinstance(batch, bool) or not 1 <= batch <= MOST_BATCH:
        raise InvalidOption(f"batch={quoted(batch)} is not possible; give an int from 1 to {MOST_BATCH:,}")
    linger_s: Any = 0 if linger is None else linger
    if isinstance(linger_s, dt.timedelta):
        linger_s = linger_s.total_seconds()
    if not is_seconds(linger_s) or linger_s > LONGEST_LINGER_S:
        raise InvalidOption(f"linger={quoted(linger)} is not possible; give seconds from 0 to {LONGEST_LINGER_S:g}")
    if concurrency is not None:
        _check_concurrency(concurrency)
    if isolate is not None and not isinstance(isolate, bool):
        raise InvalidOption(f"isolate={quoted(isolate)} is not possible; give True or False")
    return Batching(size=batch, linger_s=float(linger_s), places=concurrency, isolate=isolate is not False)


def plan_of(worker: WorkerBase[Any]) -> Plan:
    """The checked plan of a worker, for whoever runs its handlers in its place."""
    return worker._plan()


def lifecycle_of(worker: WorkerBase[Any]) -> Lifecycle:
    """The ``on_startup`` and ``on_shutdown`` functions of a worker, for a test's clock, which runs its handlers."""
    return worker._lifecycle


def choose_topics(worker: WorkerBase[Any], topics: Sequence[str]) -> None:
    """Makes the worker serve only these of its topics, in this order of priority."""
    served = list(worker._plan().handlers)
    unknown = [topic for topic in topics if topic not in served]
    if unknown:
        raise InvalidOption(f"the worker does not serve {unknown[0]!r}; its topics are {served}")
    worker._chosen = list(dict.fromkeys(topics))


def engine_of(worker: WorkerBase[Any]) -> object:
    """The engine that made the worker."""
    return getattr(worker._push, "__self__", None)
