"""The running part of a worker: a delivery loop that counts what becomes of tasks, and reports that to the fleet."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from shardq.core.calls.consume import KeyWaits
from shardq.core.consumer.claim_state import Claims
from shardq.core.consumer.settling import Settlement
from shardq.core.consumer.wakeups import Wakeups
from shardq.core.drivers.sync import Driver
from shardq.core.fleet.lateness import TopicLateness
from shardq.core.locks import SignalSafeEvent
from shardq.delivery.job import Job, Lot
from shardq.delivery.loop import DeliveryLoop
from shardq.worker.handlers import Plan
from shardq.worker.report import Reporter, Tally


class Processor(DeliveryLoop):
    """Runs the handlers of one worker. Started once and stopped once."""

    def __init__(
        self,
        driver: Driver,
        claims: Claims,
        wakeups: Callable[[float], Wakeups],
        plan: Plan,
        *,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        key_waits, of_engine = TopicLateness(), claims.note_waits

        def note_waits(waits: KeyWaits) -> None:
            of_engine(waits)
            key_waits.add(waits)

        claims.note_waits = note_waits
        super().__init__(driver, claims, plan.hooks, concurrency=plan.concurrency, loop=loop)
        self._handle(plan.handlers, wakeups, plan.concurrency)
        self.tally: Tally = Tally(
            plan.handlers,
            plan.concurrency,
            tasks=plan.tasks,
            running=self.running,
            problems=lambda: self.problems,
            key_waits=key_waits.snapshot,
        )
        self._reporter = Reporter(driver, claims.cache, claims.name, self.tally.report)

    def start(self) -> None:
        super().start()
        self._reporter.start()

    def stop(self, grace: float, hurry: SignalSafeEvent, last: Callable[[], None] = lambda: None) -> None:
        super().stop(grace, hurry, last)
        self._reporter.stop()

    def note_call(self, lot: Lot, size: int, seconds: float) -> None:
        super().note_call(lot, size, seconds)
        self.tally.note_call(lot, size, seconds)

    def note_ended(self, settlements: Iterable[tuple[Job, Settlement]]) -> None:
        self.tally.count(settlements)
