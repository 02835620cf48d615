"""The parts that an engine makes when it opens and starts: its drivers, and its dispatcher.

``shardq.testing`` puts others in their place, which go by a clock of the test's; ``refit`` does that. The functions
below are for what works on an engine from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from shardq.core.dispatcher import Dispatcher, Sinks
from shardq.core.drivers.settings import Settings
from shardq.core.drivers.sync import Driver
from shardq.core.subscriber import Subscriber
from shardq.core.topology_cache import TopologyCache
from shardq.errors import InvalidOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.core.consumer.claims import Claims
    from shardq.core.drivers.aio import AsyncDriver
    from shardq.core.operation import Operation
    from shardq.engine.aio import AsyncEngine
    from shardq.engine.base import EngineBase
    from shardq.engine.control import CountsByShard
    from shardq.engine.health import Examined, Reason
    from shardq.engine.options import Options
    from shardq.engine.sync import Engine
    from shardq.engine.tracing import Tracing
    from shardq.worker.handlers import Plan, Registered
    from shardq.worker.processor import Processor
    from shardq.worker.report import Outcomes


class Parts:
    """Those of an engine that works by the servers' clock."""

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
        sinks: Sinks,
    ) -> Dispatcher:
        """Not started yet."""
        return Dispatcher(driver, cache, subscriber, sinks=sinks)


def refit(engine: EngineBase, parts: Parts, options: Options) -> tuple[Parts, Options]:
    """Gives an engine that is not open other parts and options. Returns those it had."""
    if has_opened(engine) and not engine._closed:
        raise InvalidOption(f"{engine!r} is open, and can't go by another clock or to another server now: close() it")
    before = engine._parts, engine.options
    engine._parts, engine.options = parts, options
    engine._closed, engine._topics_of_shard = False, {}
    engine._forked()
    return before


def driver_of(engine: Engine) -> Driver:
    return engine._open_driver(engine._deadline())


async def async_driver_of(engine: AsyncEngine) -> AsyncDriver:
    return await engine._open_driver(engine._deadline())


def parts_of(engine: EngineBase) -> Parts:
    return engine._parts


def declare_recurring(engine: EngineBase, functions: Sequence[Registered]) -> Any:
    """Declares the schedules of these functions, as a worker does at its start. To be awaited for asyncio."""
    return cast("Engine | AsyncEngine", engine)._declare_recurring(functions)


def dispatcher_of(engine: EngineBase) -> Dispatcher | None:
    """The dispatcher of this process, while it runs."""
    return engine._dispatcher


def processors_of(engine: EngineBase) -> list[Processor]:
    """The running parts of the engine's workers in this process."""
    return list(engine._processors)


def is_open(engine: EngineBase) -> bool:
    """True while the engine is open: it has connected, and read the topology."""
    return engine._cache is not None and not engine._closed


def pushed_by(engine: EngineBase) -> int:
    """The tasks that this process pushed with the engine, as far as it was told that they are stored."""
    return engine._packer.pushed


def counted_outcomes(engine: EngineBase) -> Outcomes:
    """The counters of how tasks end in the engine's workers in this process. They count from the first call on."""
    engine._has_metrics = True
    outcomes = engine._counted_outcomes()
    assert outcomes is not None, "somebody has asked now"
    for processor in processors_of(engine):
        processor.outcomes = outcomes
    return outcomes


def cache_of(engine: EngineBase) -> TopologyCache:
    """The topology cache of an open engine."""
    return engine._map()


def claims_of(engine: EngineBase, topics: Sequence[str]) -> Claims:
    """The claims of a new consumer of an open engine."""
    return engine._claims(topics, 30.0, None)()


def planned_claims(engine: EngineBase, plan: Plan) -> Claims:
    """The claims of a worker of an open engine."""
    return engine._planned_claims(plan)


def examined(engine: EngineBase, driver: Driver, counts_by_shard: CountsByShard) -> Operation[Examined]:
    """Looks at the servers of an open engine, as for a process that may have to serve every shard."""
    return engine._examine(driver, counts_by_shard, subscriber=None, pollers=driver)


def own_reasons(engine: EngineBase) -> list[Reason]:
    """The reasons in parts of this process that no look at the servers finds."""
    return engine._own_reasons()


def has_opened(engine: EngineBase) -> bool:
    """True if it was opened since it was made, or since ``refit``."""
    return engine._cache is not None


def trace_by(engine: EngineBase, tracing: Tracing) -> None:
    """Has an engine, and the workers that it runs from now on, traced."""
    engine._tracing = tracing
    engine._tasks.around = tracing.handler
