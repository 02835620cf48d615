"""An engine as the parts of the package see it that work beside engines."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shardq.core.consumer.claim_state import Claims
from shardq.core.drivers.sync import Driver
from shardq.core.model.checks import instant_ms
from shardq.core.operation import Operation
from shardq.core.producer.packing import Packer
from shardq.core.topology_cache import TopologyCache
from shardq.engine.base import EngineBase
from shardq.engine.engine_wide import CountsByShard, use_cold
from shardq.engine.health import Examined
from shardq.engine.options import DEFAULT_LEASE_S, Options
from shardq.engine.parts import PartsFactory, Running, Tracing
from shardq.errors import InvalidOption
from shardq.features.transfer.importing import Importer
from shardq.worker.handlers import Registered

if TYPE_CHECKING:
    from shardq.features.cold.relaying import ColdRelaying
    from shardq.features.cold.report import LoaderReport
    from shardq.worker.handlers import Plan


class Internals:
    """The view of an engine for metrics, traces, the outbox, the CLI, integrations and tests with a clock of their own.
    Programs need none of it.
    """

    def __init__(self, engine: EngineBase) -> None:
        self._engine = engine
        self.options: Options = engine._options
        self.parts: PartsFactory = engine._parts
        self.running: Running = engine._running

    @property
    def has_opened(self) -> bool:
        """True if it was opened since it was made, or since ``refit``."""
        return self._engine._cache is not None

    @property
    def is_open(self) -> bool:
        """True while it is open: it has connected, and read the topology."""
        return self.has_opened and not self._engine._closed

    @property
    def pushed(self) -> int:
        """The tasks that this process pushed with the engine, as far as it was told that they are stored."""
        return self._engine._packer.pushed

    def open_driver(self) -> Any:
        """Opens the engine if it is not open. Returns its driver; for asyncio it is awaited."""
        return self._engine._open_driver(self._engine._deadline())

    def load_cold(self) -> LoaderReport:
        """Loads what is near from the cold store, once. Of an engine for threads."""
        loader = self._engine._loader(self.open_driver(), "by hand", lambda: ())
        loader.once()
        return loader.report()

    def cold_relaying(self, packer: Packer, opened: Callable[[], tuple[Driver, TopologyCache]]) -> ColdRelaying:
        """Returns the part of a relay that carries out commands on ids which may be in the cold store."""
        from shardq.features.cold.relaying import ColdRelaying, RelayedRedis  # here: most programs have no relay

        cold = None if self.parts.is_of_test else self._engine._cold_store
        return ColdRelaying(cold, RelayedRedis(packer, self.options.timeout, opened), use_cold)

    def drop_cold(self, due_before: float | dt.datetime) -> int:
        """Removes what is due before an instant from the cold store. Returns how many."""
        cold = self._engine._cold_store
        assert cold is not None, "there is a cold store"
        return cold.store.drop(instant_ms(due_before, "due_before"), self._engine._options.timeout)

    def importer(self, **options: Any) -> Importer:
        """An import into the engine, which the caller carries out window by window."""
        return self._engine._importer(**options)

    def declare_recurring(self, functions: Iterable[Registered]) -> Any:
        """Declares the schedules of these functions, as a worker does at its start. It is awaited for asyncio."""
        return self._engine._declare_recurring(functions)

    def trace_by(self, tracing: Tracing) -> None:
        """Traces the engine, and the workers that it runs from now on."""
        self._engine._trace_by(tracing)
        self._engine._tasks.around = tracing.handler

    def refit(self, parts: PartsFactory, options: Options) -> tuple[PartsFactory, Options]:
        """Gives an engine that is not open other parts and options. Returns those it had."""
        engine = self._engine
        if self.is_open:
            raise InvalidOption(
                f"{engine!r} is open, and can't go by another clock or to another server now: close() it"
            )
        before = engine._parts, engine._options
        engine._parts, engine._options = parts, options
        engine._closed, engine._topics_of_shard = False, {}
        engine._forked()
        return before

    # ---- of an open engine

    @property
    def cache(self) -> TopologyCache:
        return self._engine._map()

    def claims(self, topics: Sequence[str]) -> Claims:
        """The claims of a new consumer."""
        return self._engine._claims(topics, DEFAULT_LEASE_S, None)()

    def planned_claims(self, plan: Plan) -> Claims:
        """The claims of a worker."""
        return self._engine._planned_claims(plan)

    def examine(self, driver: Driver, counts_by_shard: CountsByShard) -> Operation[Examined]:
        """Looks at the servers as for a process that may have to serve every shard."""
        return self._engine._examine(driver, counts_by_shard, subscriber=None, pollers=driver)
