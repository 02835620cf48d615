"""The engines and workers that go by a clock: the name, parts and keys of an engine, the claims and settlements of a
worker, of which no thread runs.
"""

from __future__ import annotations

import contextvars
import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from shardq.core.calls import observe
from shardq.core.calls.request import Command
from shardq.core.consumer.claiming import claim
from shardq.core.consumer.claims import ClaimNotes, Claims
from shardq.core.consumer.settling import Settlement, by_shard, settle
from shardq.core.drivers.clients import Access
from shardq.core.layout.topology import Stamp
from shardq.core.operation import Many, Operation, values
from shardq.core.topology_cache import TopologyCache
from shardq.delivery.current import CURRENT
from shardq.delivery.job import Job, call_hooks, settlement_of
from shardq.engine.base import EngineBase
from shardq.engine.internals import Internals
from shardq.engine.options import Options
from shardq.engine.parts import PartsFactory
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
        self._before: tuple[PartsFactory, Options] | None = None
        self._parts: PartsFactory | None = None
        self._rested = False

    @property
    def now(self) -> dt.datetime:
        return dt.datetime.now(dt.UTC) if self.real_time else self.time.now

    @property
    def has_tasks(self) -> bool:
        """True if something may be stored under its name."""
        return self._rested or Internals(self.engine).has_opened

    def begin(self, parts: PartsFactory, *, url: str, name: str, shards: int | None) -> None:
        if self.engine in _adopted:
            raise InvalidOption(
                f"{self.engine!r} goes by a clock already: close() that before you adopt the engine again"
            )
        options = dataclasses.replace(Internals(self.engine).options, url=url, access=Access(), name=name)
        if shards is not None:
            options = dataclasses.replace(options, shards=shards)
        self._parts, self._before = parts, Internals(self.engine).refit(parts, options)
        _adopted[self.engine] = self

    def move_rows(self) -> None:
        """Does what the threads of the engine's outbox relays do that were started."""
        for relay in list(Internals(self.engine).running.relays):
            relay.catch_up()

    def rest(self) -> None:
        """Lets an engine that is closed be opened again at its next use, in another loop."""
        if self._parts is not None and Internals(self.engine).has_opened:
            self._rested = True
            Internals(self.engine).refit(self._parts, Internals(self.engine).options)

    def end(self) -> None:
        """Makes the engine what it was. It is closed."""
        if self._before is not None:
            Internals(self.engine).refit(*self._before)
            self._before = None
        _adopted.pop(self.engine, None)


def context_of(job: Job) -> contextvars.Context:
    """A context for what is called about a job, with nothing in it but ``shardq.current()``."""
    context = contextvars.Context()
    context.run(CURRENT.set, job.delivery)
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


class BoundWorker:
    """A worker of an adopted engine, whose handlers the clock runs."""

    def __init__(self, adopted: Adopted[Any], worker: WorkerBase[Any], *, inline: bool, raising: bool) -> None:
        self.adopted = adopted
        self.inline = inline
        self.raising = raising
        self.hopeful: set[int] | None = None
        """Shards that may have something ready; None: all."""
        self.is_declared = False
        """True once the recurring tasks that it serves are declared, as by a worker that starts."""
        self.has_begun = False
        self._worker = worker
        self._plan = plan_of(worker)  # a worker without handlers is refused here
        self._claims: Claims | None = None
        self._epoch = Stamp("0")

    @property
    def functions(self) -> Sequence[Registered]:
        return self._plan.functions

    def claim(self) -> Operation[list[Job]]:
        """Claims as many tasks as the worker handles at once."""
        if self._claims is None:
            self._plan = plan_of(self._worker)
            self._claims = Internals(self.adopted.engine).planned_claims(self._plan)
            self.adopted.pollers.handlers.add(self._claims.name)
        claims = self._claims
        topology = claims.cache.topology
        if topology.stamp != self._epoch:
            self._epoch, self.hopeful = topology.stamp, None  # a topic may be given out again
        span = set(topology.span())
        shards = sorted(span if self.hopeful is None else span & self.hopeful)
        if not shards:
            return []
        claims.limiter.forget_denials()  # it counts by the clock of this process
        deliveries = yield from claim(claims, ClaimNotes(), self._plan.concurrency, shards)
        if len(deliveries) < self._plan.concurrency:
            self.hopeful = {shard for shard in shards if claims.planner.left([shard])}
            if not deliveries and not claims.limiter.denied():
                self.hopeful = set()  # what is left is paused
        return [Job(delivery, self._plan.handlers[delivery.topic].of(delivery)) for delivery in deliveries]

    def pause_us(self) -> int | None:
        """The time after which a topic that is limited to a rate has its next permit; None: nothing waits for one."""
        claims = self._claims
        if claims is None or not self.hopeful:
            return None
        limits = claims.cache.topology.limits
        rates = [limits[topic].rate for topic in claims.limiter.denied() if topic in limits]
        return min((-(-1_000_000 // (rate * 1000)) * 1000 for rate in rates if rate), default=None)  # type: ignore[return-value]

    def before(self, job: Job) -> None:
        job.stage = "running"
        context_of(job).run(self._plan.hooks.before, job.delivery)

    def concluded(self, job: Job, failure: BaseException | None) -> Settlement:
        """Returns the settlement that the end of a handler means. The worker's hooks hear of it."""
        job.stage = "done"
        settlement = job.delivery if failure is None else settlement_of(job, failure)
        context_of(job).run(call_hooks, self._plan.hooks, job, settlement, failure)
        return settlement

    def begin(self) -> Calls:
        """Calls what the worker has registered for its start, before its first task."""
        if not self.has_begun:
            yield from lifecycle_of(self._worker).begin()
            self.has_begun = True

    def end(self) -> Calls:
        """Calls what the worker has registered for its end."""
        return lifecycle_of(self._worker).end()

    def settle(self, ended: Sequence[tuple[Job, Settlement]]) -> Operation[None]:
        """Settles jobs; what has not ended is given back."""
        assert self._claims is not None, "it has claimed"
        if ended:
            yield from settle(self._claims, by_shard((job.delivery, settlement) for job, settlement in ended))
