"""An engine as the parts of the package see it that work beside engines."""

from __future__ import annotations

import datetime as dt
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from shardq.core import topology_upkeep
from shardq.core.consumer.claim_state import Claims, Decode
from shardq.core.drivers.sync import Driver
from shardq.core.model.checks import Topics, checked_topics, instant_ms
from shardq.core.model.record import RAW
from shardq.core.model.task import Receipt, Task
from shardq.core.operation import Operation
from shardq.core.producer.durable import Durability
from shardq.core.producer.packing import Packer
from shardq.core.producer.pushing import check_hooked
from shardq.core.topology_cache import TopologyCache
from shardq.engine.base import EngineBase
from shardq.engine.engine_wide import link_far
from shardq.engine.options import DEFAULT_LEASE_S, Options
from shardq.engine.servers import Found
from shardq.engine.wiring import DriverFactory, Running, Tracing
from shardq.errors import InvalidOption
from shardq.features.transfer.importing import Importer
from shardq.worker.handlers import Registered

if TYPE_CHECKING:
    from shardq.core.consumer.aio import AsyncConsumer
    from shardq.engine.aio import AsyncEngine
    from shardq.features.far.relaying import FarRelaying
    from shardq.features.far.report import LoaderReport
    from shardq.worker.handlers import Plan


class EngineAccess:
    """The view of an engine for metrics, traces, the outbox, the CLI, integrations and tests with a clock of their own.
    Programs need none of it.
    """

    def __init__(self, engine: EngineBase) -> None:
        self._engine = engine
        self.options: Options = engine._options
        self.factory: DriverFactory = engine._factory
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

    async def driver_beside(self) -> Driver:
        """Opens an engine for asyncio, if it is not open. Returns the driver of the threads beside its loop."""
        engine: Any = self._engine
        deadline = engine._deadline()
        await engine._open_driver(deadline)
        async with engine._held(deadline):
            driver: Driver = (await engine._open_beside(deadline))[0]
        return driver

    def consumer(self, topics: Topics, *, lease: float, name: str, decode: Decode) -> AsyncConsumer:
        """A consumer of an engine for asyncio, which reads records by ``decode``, and looks for no dispatcher."""
        from shardq.core.consumer.aio import AsyncConsumer  # here: programs of threads load no asyncio

        engine: Any = self._engine
        make = self._engine._claims(topics, lease, None, decode=decode)

        async def opened(deadline: float) -> tuple[Any, Claims, Any]:
            driver, claims = await engine._open_driver(deadline), make()
            claims.name, claims.look = f"{name}-{secrets.token_hex(6)}", None
            return driver, claims, engine._background

        names = checked_topics(topics)[0]
        return AsyncConsumer(opened, engine._open_wakeups, names, self.options.timeout)

    def load_far(self) -> LoaderReport:
        """Loads what is near from the far store, once. Of an engine for threads."""
        loader = self._engine._loader(self.open_driver(), "by hand", lambda: ())
        loader.once()
        return loader.report()

    def accept_far(self) -> None:
        """Has what is in the far store loaded, although its database was restored. Of an engine for threads."""
        self._engine._loader(self.open_driver(), "by hand", lambda: ()).accept()

    def far_relaying(self, packer: Packer, opened: Callable[[], tuple[Driver, TopologyCache]]) -> FarRelaying:
        """Returns the part of a relay that carries out commands on ids which may be in the far store."""
        from shardq.features.far.relaying import FarRelaying, RelayedRedis  # here: most programs have no relay

        far = None if self.factory.is_of_test else self._engine._far
        return FarRelaying(far, RelayedRedis(packer, self.options.timeout, opened), link_far)

    def change_ahead(self, ahead: float) -> float:
        """Has tasks loaded from the far store so many seconds before they are due. Returns the seconds until all
        processes go by that. Of an engine for threads.
        """
        from shardq.features.far.far import ahead_checked  # here: most engines have none

        far, seconds = self._engine._far, ahead_checked(ahead)
        assert far is not None, "there is a far store"
        assert seconds is not None, "one was given"
        owner = far.store.change_ahead(seconds, time.monotonic() + self._engine._options.timeout)
        return max(0.0, (owner.changes_until - far.store.now_ms) / 1000)

    def drop_far(self, due_before: float | dt.datetime) -> int:
        """Removes what is due before an instant from the far store. Returns how many."""
        far = self._engine._far
        assert far is not None, "there is a far store"
        return far.store.drop(instant_ms(due_before, "due_before"), self._engine._options.timeout)

    def importer(self, **options: Any) -> Importer:
        """An import into the engine, which the caller carries out chunk by chunk."""
        return self._engine._importer(**options)

    def declare_recurring(self, functions: Iterable[Registered]) -> Any:
        """Declares the schedules of these functions, as a worker does at its start. It is awaited for asyncio."""
        return self._engine._declare_recurring(functions)

    def trace_by(self, tracing: Tracing) -> None:
        """Traces the engine, and the workers that it runs from now on."""
        self._engine._trace_by(tracing)
        self._engine._tasks.around = tracing.handler

    def for_asyncio(self, kind: type[AsyncEngine]) -> AsyncEngine:
        """Returns an engine for asyncio with the same options, which is not open."""
        if self._engine._spool is not None or self._engine._far is not None:
            raise InvalidOption(
                "an Engine with far= or spool= has no other beside it that could serve programs; give an AsyncEngine"
            )
        options = self.options
        made = kind(options.url, name=options.name, codec=options.codec, max_payload=options.max_payload)
        EngineAccess(made).refit(self.factory, options)
        return made

    def check(self, task: Task) -> None:
        """Raises the BadInput of a task. Nothing is sent."""
        entries = self._engine._packer.one(task)
        if entries.hooked and self.has_opened:
            check_hooked(self.cache, entries.hooked)

    async def refresh(self) -> None:
        """Reads the topology anew; opens the engine if it is not open. Of an engine for asyncio."""
        engine: Any = self._engine
        await engine._carry_out(topology_upkeep.refresh)

    async def push(self, task: Task, durability: Durability | None) -> Receipt:
        """Pushes one task. Of an engine for asyncio."""
        engine: Any = self._engine
        receipt: Receipt = await engine._pusher.push(task, durability)
        return receipt

    async def push_bytes(self, task: Task, durability: Durability | None) -> Receipt:
        """Pushes a task whose payload is bytes, by the codec ``raw``. Of an engine for asyncio."""
        engine: Any = self._engine
        if engine._packer.binds:
            raise InvalidOption("payload_base64= is not possible: payloads of this engine are encrypted, and JSON")
        packer = Packer(RAW, max_payload=self.options.max_payload)
        packer.cache = engine._packer.cache
        receipt: Receipt = await engine._store.push_one(packer.one(task), engine._deadline(), durability)
        return receipt

    def refit(self, factory: DriverFactory, options: Options) -> tuple[DriverFactory, Options]:
        """Gives an engine that is not open another factory and other options. Returns those it had."""
        engine = self._engine
        if self.is_open:
            raise InvalidOption(
                f"{engine!r} is open, and can't go by another clock or to another server now: close() it"
            )
        before = engine._factory, engine._options
        engine._factory, engine._options = factory, options
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

    def settler(self) -> Claims:
        """Claims of no topic, for what others have claimed."""
        engine = self._engine
        return Claims(
            engine._map(), (), name="settler", lease_ms=int(DEFAULT_LEASE_S * 1000), ready_counts=engine._ready_counts
        )

    def planned_claims(self, plan: Plan) -> Claims:
        """The claims of a worker."""
        return self._engine._planned_claims(plan)

    def find_settings(self, driver: Driver) -> Operation[Found]:
        """Looks at how the servers are set up, as for a process that may have to serve every shard."""
        return self._engine._find_settings(driver, pollers=driver)
