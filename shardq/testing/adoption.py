"""The engines and workers that go by a clock: the name, parts and keys of an engine, the claims and settlements of a
worker, of which no thread runs.
"""

from __future__ import annotations

import contextvars
import dataclasses
import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from shardq.core.calls import observe
from shardq.core.calls.request import Command
from shardq.core.consumer.claim_state import ClaimNotes, Claims
from shardq.core.consumer.claiming import claim
from shardq.core.consumer.settling import by_shard, settle
from shardq.core.drivers.clients import Access
from shardq.core.layout.topology import Stamp
from shardq.core.model.task import Delivery
from shardq.core.operation import Many, Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.delivery.batch import Batch
from shardq.delivery.calling import LotCalls
from shardq.delivery.current import CURRENT
from shardq.delivery.handler import Handler
from shardq.delivery.hooks import Hooks
from shardq.delivery.in_flight import InFlight
from shardq.delivery.job import Job, Lot, Unit
from shardq.delivery.prefetch import BatchRoom
from shardq.delivery.runners import conclude
from shardq.engine.around import DriverFactory, EngineAccess, EngineBase, Options
from shardq.errors import InvalidOption
from shardq.testing.virtual import VirtualPollers, VirtualTime
from shardq.worker.base import WorkerBase, lifecycle_of, plan_of
from shardq.worker.handlers import Registered
from shardq.worker.lifecycle import Calls

E = TypeVar("E", bound=EngineBase)

_adopted: WeakKeyDictionary[EngineBase, Adopted[Any]] = WeakKeyDictionary()


def adopted_of(engine: EngineBase) -> Adopted[Any] | None:
    """Returns how an engine goes by a clock; None: it goes by that of its servers."""
    return _adopted.get(engine)


class Adopted(Generic[E]):
    """One engine of a clock."""

    def __init__(self, engine: E, time: VirtualTime, *, real_time: bool) -> None:
        self.engine = engine
        self.time = time
        self.real_time = real_time
        self.pollers: VirtualPollers = VirtualPollers(engine, time)
        self._before: tuple[DriverFactory, Options] | None = None
        self._factory: DriverFactory | None = None
        self._rested = False

    @property
    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC) if self.real_time else self.time.now

    @property
    def has_tasks(self) -> bool:
        """True if something may be stored under its name."""
        return self._rested or EngineAccess(self.engine).has_opened

    def begin(self, factory: DriverFactory, *, url: str, name: str, shards: int | None) -> None:
        if self.engine in _adopted:
            raise InvalidOption(
                f"{self.engine!r} goes by a clock already: close() that before you adopt the engine again"
            )
        options = dataclasses.replace(EngineAccess(self.engine).options, url=url, access=Access(), name=name)
        if shards is not None:
            options = dataclasses.replace(options, shards=shards)
        self._factory, self._before = factory, EngineAccess(self.engine).refit(factory, options)
        _adopted[self.engine] = self

    def move_rows(self) -> None:
        """Does what the threads of the engine's outbox relays do that were started."""
        for relay in list(EngineAccess(self.engine).running.relays):
            relay.catch_up()

    def rest(self) -> None:
        """Lets an engine that is closed be opened again at its next use, in another loop."""
        if self._factory is not None and EngineAccess(self.engine).has_opened:
            self._rested = True
            EngineAccess(self.engine).refit(self._factory, EngineAccess(self.engine).options)

    def end(self) -> None:
        """Makes the engine what it was. It is closed."""
        if self._before is not None:
            EngineAccess(self.engine).refit(*self._before)
            self._before = None
        _adopted.pop(self.engine, None)


def context_of(given: Delivery | Batch[Any]) -> contextvars.Context:
    """A context for what is called about a delivery or a batch, with nothing in it but ``shardq.current()``."""
    context = contextvars.Context()
    context.run(CURRENT.set, given)
    return context


def remove(cache: TopologyCache) -> Operation[None]:
    """Removes all that is stored under the name of an engine."""
    shards = {keys.shard: keys for keys in cache.span()}
    topics = values((yield Many({shard: observe.dispatched(keys) for shard, keys in shards.items()})))
    removals: dict[int, list[str]] = {}
    for shard, keys in shards.items():
        names = ["", *topics[shard]]
        removals[shard] = [keys.meta, keys.due, keys.task, keys.leased, keys.lease, keys.dead, keys.why, keys.ghost]
        removals[shard] += [keys.keys, keys.placed, keys.alarms, keys.rests, keys.holds, keys.gates]
        removals[shard] += [keys.seen, keys.topics, keys.moved, keys.staged, keys.copy]
        removals[shard] += [*map(keys.ready, names), *map(keys.waiting, names)]
    control, limited = cache.control, cache.topology.limits
    removals[-1] = [control.topology, control.settings, control.edits, control.members]
    removals[-1] += [control.schedules, control.changes]
    removals[-1] += [*map(control.bucket, limited), *map(control.permits, limited)]
    slots = {shard: keys.slot for shard, keys in shards.items()} | {-1: control.slot}
    values((yield Many({at: Command(slots[at], ("UNLINK", *names), int) for at, names in removals.items()})))


class _Heard:
    """Middleware that keeps the first failure of what a bound worker handles next."""

    failure: BaseException | None = None

    def error(self, delivery: Delivery, failure: BaseException) -> None:
        self.failure = self.failure or failure


class _PartClaims:
    """The claims of what one thread of a worker claims: of all handlers of single tasks, or of one of batches."""

    def __init__(self, claims: Claims, handlers: Mapping[str, Handler], most: int) -> None:
        self.hopeful: set[int] | None = None
        """Shards that may have something ready; None: all."""
        self._claims = claims
        self._handlers = handlers
        self._most = most
        self._epoch = Stamp("0")

    def claim(self) -> Operation[list[Unit]]:
        claims = self._claims
        topology = claims.cache.topology
        if topology.stamp != self._epoch:
            self._epoch, self.hopeful = topology.stamp, None  # a topic may be given out again
        span = set(topology.span())
        shards = sorted(span if self.hopeful is None else span & self.hopeful)
        if not shards:
            return []
        claims.limiter.forget_denials(claims.topics)  # it counts by the clock of this process
        deliveries = yield from claim(claims, ClaimNotes(), self._most, shards)
        if len(deliveries) < self._most:
            self.hopeful = {shard for shard in shards if claims.planner.left([shard])}
            if not deliveries and not self._denied():
                self.hopeful = set()  # what is left is paused
        if not deliveries:
            return []
        handler = self._handlers[deliveries[0].topic]
        if handler.batching is not None:
            return [Lot.of(handler, deliveries, BatchRoom(1))]
        return [Job(delivery, self._handlers[delivery.topic].of(delivery)) for delivery in deliveries]

    def pause_us(self) -> int | None:
        """The time after which a topic that is limited to a rate has its next permit; None: nothing waits for one."""
        if not self.hopeful:
            return None
        limits = self._claims.cache.topology.limits
        rates = [limits[topic].rate for topic in self._denied() if topic in limits]
        return min((-(-1_000_000 // (rate * 1000)) * 1000 for rate in rates if rate), default=None)  # type: ignore[return-value]

    def _denied(self) -> list[str]:
        """Its topics that had no permit left."""
        return [topic for topic in self._claims.limiter.denied() if topic in self._claims.ranks]


class BoundWorker:
    """A worker of an adopted engine, whose handlers the clock runs."""

    def __init__(self, adopted: Adopted[Any], worker: WorkerBase[Any], *, inline: bool, raising: bool) -> None:
        self.adopted = adopted
        self.inline = inline
        self.raising = raising
        self.is_declared = False
        """True once the recurring tasks that it serves are declared, as by a worker that starts."""
        self.has_begun: bool = False
        self._worker = worker
        self._plan = plan_of(worker)  # a worker without handlers is refused here
        self._claims: Claims | None = None
        self._parts: list[_PartClaims] = []
        """In the order of the topics that are first in each. Empty before the first claim."""
        self._in_flight = InFlight(1)
        self._heard = _Heard()
        self._hooks = Hooks()
        self._hooks.use(self._plan.hooks)
        self._hooks.use(self._heard)

    @property
    def functions(self) -> Sequence[Registered]:
        return self._plan.functions

    @property
    def failure(self) -> BaseException | None:
        """The first failure of a task that it handled since the last claim."""
        return self._heard.failure

    def doubt(self) -> None:
        """Any shard may have something ready."""
        for part in self._parts:
            part.hopeful = None

    def expect(self, shards: Collection[int]) -> None:
        """These shards may have something ready, too."""
        for part in self._parts:
            if part.hopeful is not None:
                part.hopeful |= set(shards)

    def claim(self) -> Operation[list[Unit]]:
        """Claims what is handled next: as many single tasks as the worker handles at once, or a batch."""
        if self._claims is None:
            self._open()
        self._heard.failure = None
        for part in self._parts:
            units = yield from part.claim()
            for unit in units:
                if isinstance(unit, Lot):
                    self._in_flight.put_lot(unit)
                else:
                    self._in_flight.put([unit])
            if units:
                return units
        return []

    def _open(self) -> None:
        plan = self._plan = plan_of(self._worker)
        claims = self._claims = EngineAccess(self.adopted.engine).planned_claims(plan)
        self.adopted.pollers.handlers.add(claims.name)
        by_part: dict[str, list[str]] = {}
        for topic, handler in plan.handlers.items():
            by_part.setdefault("single" if handler.batching is None else f"batches of {topic}", []).append(topic)
        for topics in by_part.values():
            batching = plan.handlers[topics[0]].batching
            most = plan.concurrency if batching is None else batching.size
            self._parts.append(_PartClaims(claims.of(topics), plan.handlers, most))

    def pause_us(self) -> int | None:
        """The time after which something that waits for a permit has its next one; None: nothing does."""
        pauses = [part.pause_us() for part in self._parts]
        return min((pause for pause in pauses if pause is not None), default=None)

    def begin_handling(self, unit: Unit) -> bool:
        """Begins a job or a lot. Returns False if it was given back, as its key is held since."""
        if not self._in_flight.begin(unit):
            return False
        if isinstance(unit, Job):
            context_of(unit.delivery).run(self._hooks.before, unit.delivery)
        return True

    def conclude(self, job: Job, failure: BaseException | None) -> None:
        """Settles a job whose handler has ended. The worker's hooks hear of it."""
        context_of(job.delivery).run(conclude, self._in_flight, self._hooks, job, failure)
        if job.unknown is not None and failure is not None:
            self._heard.error(job.delivery, failure)

    def calls(self, lot: Lot) -> LotCalls:
        """The calls of a lot."""
        return LotCalls(self._in_flight, self._hooks, lot, lambda lot, size, seconds: None)

    def begin(self) -> Calls:
        """Calls what the worker has registered for its start, before its first task."""
        if not self.has_begun:
            yield from lifecycle_of(self._worker).begin()
            self.has_begun = True

    def end(self) -> Calls:
        """Calls what the worker has registered for its end."""
        return lifecycle_of(self._worker).end()

    def settle(self) -> Operation[set[int]]:
        """Settles what has ended of the last claim. Gives back what has not. Returns the shards in which a key may have
        been handed to its next task, which is ready then.
        """
        assert self._claims is not None, "it has claimed"
        in_flight = self._in_flight
        in_flight.give_back(in_flight.emptied())
        for unit in in_flight.unfinished():
            if isinstance(unit, Lot):
                in_flight.end_lot(unit)
            else:
                in_flight.finish(unit, unit.back())
        ended = in_flight.settlements()
        in_flight.settled([job for job, _ in ended])
        topology = self._claims.cache.topology
        settlements = (
            (job.delivery, job.noted(settlement, topology) if isinstance(settlement, Delivery) else settlement)
            for job, settlement in ended
        )
        yield from settle(self._claims, by_shard(settlements))
        return {job.delivery.shard for job, _ in ended if job.delivery.key is not None}
