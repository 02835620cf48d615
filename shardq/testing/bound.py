"""A worker that is bound to a clock: what it would claim, and how its handlers' ends are settled. No thread runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardq.core.consumer.claiming import claim
from shardq.core.consumer.claims import ClaimNotes, Claims
from shardq.core.consumer.settling import settle
from shardq.core.operation import Operation
from shardq.engine.base import EngineBase
from shardq.engine.parts import planned_claims
from shardq.worker.base import WorkerBase, plan_of
from shardq.worker.handlers import Registered
from shardq.worker.job import Job, Settlement, call_hooks, settlement_of, settlements_by_shard


class BoundWorker:
    """One worker of one engine."""

    def __init__(self, engine: EngineBase, worker: WorkerBase[Any], *, inline: bool, raising: bool) -> None:
        plan_of(worker)  # a worker without handlers is refused here
        self.engine = engine
        self.worker = worker
        self.inline = inline
        self.raising = raising
        self.hopeful: set[int] | None = None
        """Shards that may have something ready; None: all."""
        self.is_declared = False
        """True once the recurring tasks that it serves are declared, as by a worker that starts."""
        self._plan = plan_of(worker)
        self._claims: Claims | None = None
        self._epoch = 0

    def __repr__(self) -> str:
        return f"<BoundWorker {self.worker!r}>"

    @property
    def functions(self) -> Sequence[Registered]:
        return self._plan.functions

    def arrived(self, shards: set[int]) -> None:
        if self.hopeful is not None:
            self.hopeful |= shards

    def claim(self, names: set[str]) -> Operation[list[Job]]:
        """Claims as many tasks as the worker handles at once. Adds the name of its consumer to ``names``."""
        if self._claims is None:
            self._plan = plan_of(self.worker)
            self._claims = planned_claims(self.engine, self._plan)
            names.add(self._claims.name)
        claims = self._claims
        topology = claims.cache.topology
        if topology.epoch != self._epoch:
            self._epoch, self.hopeful = topology.epoch, None  # a topic may be given out again
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
        self._plan.hooks.before(job.delivery)

    def concluded(self, job: Job, failure: BaseException | None) -> Settlement:
        """Returns the settlement that the end of a handler means. The worker's hooks hear of it."""
        job.stage = "done"
        settlement = job.ack if failure is None else settlement_of(job, failure)
        call_hooks(self._plan.hooks, job, settlement, failure)
        return settlement

    def settle(self, ended: Sequence[tuple[Job, Settlement]]) -> Operation[None]:
        """Settles jobs; what has not ended is given back."""
        assert self._claims is not None, "it has claimed"
        if ended:
            yield from settle(self._claims, settlements_by_shard(ended))
