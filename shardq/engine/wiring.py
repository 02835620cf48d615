"""Makes the drivers and the dispatcher of an engine (``shardq.testing`` puts in a factory of its own), and knows what
runs for it in this process. The interface of its tracing, and the connections of a thread that works for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

from shardq.core.dispatcher import Dispatcher, RouteServer
from shardq.core.dispatcher.resuming import Resumer
from shardq.core.dispatcher.retiring import Retirer
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.lateness import Lateness, TopicLateness
from shardq.core.layout.topology import Topology
from shardq.core.model.task import Receipt, Task
from shardq.core.operation import Operation, run
from shardq.core.producer.packing import Packer
from shardq.core.subscriber import Subscriber
from shardq.core.threads import SideThread
from shardq.core.topology_cache import TopologyCache
from shardq.delivery.handler import Handler
from shardq.engine.findings import Finding, found
from shardq.engine.options import Options
from shardq.engine.stats import Here, Relay
from shardq.features.history.recorder import Recorder
from shardq.features.schedules.scheduler import Scheduler, SchedulerReport

if TYPE_CHECKING:
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.features.far.loader import Loader
    from shardq.features.far.report import FarStats, LoaderReport
    from shardq.features.replay.replayer import Replayer
    from shardq.relay.file import SpoolFile
    from shardq.relay.mover import Mover
    from shardq.relay.report import SpoolStats
    from shardq.worker.processor import Processor
    from shardq.worker.report import Outcomes


class DriverFactory:
    """The factory of an engine's drivers and dispatcher. They go by the servers' clock."""

    has_threads = True
    """False: nothing runs by itself, and a test says when what is to be done."""
    is_of_test = False
    """True: the engine's name and server are those of a test, for a while."""

    def driver(self, settings: Settings) -> Driver:
        return Driver(settings)

    def async_driver(self, settings: Settings) -> AsyncDriver:
        from shardq.core.drivers.aio import AsyncDriver  # here: programs of threads load no asyncio

        return AsyncDriver(settings)

    def dispatcher(
        self,
        driver: Driver,
        cache: TopologyCache,
        subscriber: Subscriber,
        *,
        elsewhere: RouteServer,
        loader: Callable[[Dispatcher], Loader] | None = None,
    ) -> Dispatcher:
        """Not started yet. ``loader`` makes that of the far store."""

        def beside(dispatcher: Dispatcher) -> tuple[SideThread, ...]:
            usual: list[SideThread] = [
                make(driver, cache, dispatcher) for make in (Scheduler, Recorder, Retirer, Resumer)
            ]
            return tuple(usual if loader is None else [*usual, loader(dispatcher)])

        return Dispatcher(driver, cache, subscriber, elsewhere=elsewhere, beside=beside)


class PushSpan(Protocol):
    """The time of one push."""

    tasks: Sequence[Task]
    """The tasks with the headers by which their handlers find it."""

    def pushed(self, receipts: list[Receipt]) -> list[Receipt]:
        """Notes what became of the tasks. Returns the same."""


class Tracing(Protocol):
    """Traces the pushes of an engine, and the handlers of its workers."""

    def push(self, task: Task) -> AbstractContextManager[PushSpan]: ...

    def push_many(self, tasks: Sequence[Task]) -> AbstractContextManager[PushSpan]: ...

    def stream(self, tasks: Iterator[Task]) -> Iterator[Task]:
        """The tasks of a stream with their headers."""

    def create(self, task: Task) -> Task:
        """A task that is sent later with its headers."""

    def handler(self, handler: Handler) -> Handler:
        """A handler that does the same, and is traced."""


class Running:
    """The parts that run for an engine in this process: ``stats``, ``health`` and the metrics tell of them."""

    def __init__(self, handed: TopicLateness, *, counts_outcomes: bool = False) -> None:
        """``handed``: how long the tasks had waited to which settlements have handed a key."""
        self._handed = handed
        self.dispatcher: Dispatcher | None = None
        self.replayer: Replayer | None = None
        self.relays: WeakSet[Relay] = WeakSet()
        """The outbox relays that move rows to the engine."""
        self.counts_outcomes: bool = counts_outcomes
        """True once ``outcomes`` was asked for: workers count how tasks end."""
        self._processors: WeakSet[Processor] = WeakSet()
        self._outcomes: Outcomes | None = None

    @property
    def processors(self) -> list[Processor]:
        """The running parts of the engine's workers."""
        return list(self._processors)

    def add(self, processor: Processor) -> Processor:
        """Notes a worker's running part, whose problems ``health`` tells."""
        self._processors.add(processor)
        processor.tally.outcomes = self.outcomes() if self.counts_outcomes else None
        return processor

    def outcomes(self) -> Outcomes:
        """The counters of how tasks end in the engine's workers. They count from the first call on."""
        self.counts_outcomes = True
        if self._outcomes is None:
            from shardq.worker.report import Outcomes  # here: most engines have none

            self._outcomes = Outcomes()
            for processor in self.processors:
                processor.tally.outcomes = self._outcomes
        return self._outcomes

    def key_waits(self) -> dict[str, Lateness]:
        """Topic → how long its tasks with a key had waited when this process made them ready."""
        found = [self._handed.snapshot()]
        if self.dispatcher is not None:
            found.append(self.dispatcher.key_waits())
        topics = {topic for each in found for topic in each}
        return {topic: Lateness.total(each[topic] for each in found if topic in each) for topic in sorted(topics)}

    def names(self) -> list[str]:
        """The names of the workers and of the dispatcher, as the fleet has them."""
        names = [processor.name for processor in self.processors]
        return names if self.dispatcher is None else [*names, self.dispatcher.process]

    def findings(self) -> list[Finding]:
        """What is wrong with parts of this process, and no look at the servers finds."""
        told = [
            found("worker", about=processor.name, worker="a worker of this process", problem=problem)
            for processor in self.processors
            for problem in processor.problems
        ]
        if self.dispatcher is not None and self.dispatcher.problem:
            told.append(found("unread_topology", problem=self.dispatcher.problem))
        if (scheduler := self._scheduler()) is not None:
            told += (found("failing_schedule", problem=problem) for problem in scheduler.problems)
        return told

    def _scheduler(self) -> SchedulerReport | None:
        """The report of the scheduler of recurring tasks, while it runs."""
        beside = self.dispatcher.beside if self.dispatcher else ()
        return next((each.report() for each in beside if isinstance(each, Scheduler)), None)

    def loader(self) -> LoaderReport | None:
        """The report of the loader from the far store, while one runs."""
        from shardq.features.far.loader import Loader  # here: most engines have none

        beside = self.dispatcher.beside if self.dispatcher else ()
        return next((each.report() for each in beside if isinstance(each, Loader)), None)

    def here(self, spool: SpoolStats | None, far: FarStats | None) -> Here:
        """The part of ``stats`` that this process knows without asking a server."""
        relays = tuple(relay.stats() for relay in list(self.relays))
        replay = self.replayer.stats() if self.replayer else None
        if (dispatcher := self.dispatcher) is None:
            return Here(relays=relays, spool=spool, far=far, replay=replay)
        return Here(
            relays=relays,
            spool=spool,
            far=far,
            replay=replay,
            reports=dispatcher.reports(),
            failing_routes=dispatcher.failing_routes(),
            sinks=dispatcher.sent_elsewhere(),
            scheduler=self._scheduler(),
            dispatchers=dispatcher.members,
        )


@contextmanager
def connected(options: Options, make: Callable[[Settings], Driver] = Driver) -> Iterator[Driver]:
    """Opens a driver of the caller's own for the server of an engine, with a share of it if that is embedded. Engines
    open theirs by themselves: they keep their share of an embedded server through a fork.
    """
    settings, server = options.enter()
    try:
        driver = make(settings)
        try:
            driver.open()
            yield driver
        finally:
            driver.close()
    finally:
        if server is not None:
            server.leave()


T = TypeVar("T")


class Target:
    """The servers of an engine, as a thread beside it sees them: the relay of the outbox has one, and the replay of the
    spool. Its connections are its own. It opens itself at its first use, also after ``close()``, which may come from
    another thread.
    """

    def __init__(self, options: Options, make: Callable[[Settings], Driver] = Driver) -> None:
        self._options = options
        self._make = make
        self._lock = threading.Lock()
        self._connections = ExitStack()
        self._opened: tuple[Driver, TopologyCache] | None = None

    def topology(self) -> Topology:
        """The topology as it is known here."""
        return self.opened()[1].topology

    def opened(self) -> tuple[Driver, TopologyCache]:
        """Returns the open driver and the topology cache, for more than one operation."""
        with self._lock:
            return self._opened or self._open()

    def run(
        self,
        make: Callable[[TopologyCache], Operation[T]],
        *,
        timeout: float | None = None,
        deadline: float | None = None,
    ) -> T:
        """Carries out an operation on the present topology. ``timeout`` bounds each trip, None is the engine's; the
        ``deadline`` bounds all.
        """
        with self._lock:
            driver, cache = self._opened or self._open()
            return run(driver, make(cache), timeout, deadline=deadline)

    def _open(self) -> tuple[Driver, TopologyCache]:
        with ExitStack() as opening:
            driver = opening.enter_context(connected(self._options, self._make))
            topology = run(driver, self._options.create_topology())
            self._options.compare(topology)
            self._connections = opening.pop_all()
        self._opened = driver, TopologyCache(self._options.name, topology)
        return self._opened

    def close(self) -> None:
        with self._lock:
            self._opened = None
            self._connections.close()


def spool_mover(file: SpoolFile, options: Options) -> Mover:
    """Returns the mover from a spool to the servers of an engine. It connects when there is something to send."""
    from shardq.relay.file_rows import FileRows, log  # here: it brings sqlite3
    from shardq.relay.mover import Mover

    packer = Packer(options.codec, max_payload=options.max_payload)
    return Mover(FileRows(file), packer, lambda: Target(options), log, timeout=options.timeout)
