"""The calls of a lot: which tasks the handler gets next, as a ``Batch``, and what becomes of each of them. A runner
makes the calls, on a thread or on an event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from shardq.core.calls.consume import SettleHold
from shardq.core.consumer.policy import Bury, Retry, Snooze, alone
from shardq.core.consumer.settling import Settlement
from shardq.core.model.ids import quoted_topic
from shardq.core.model.printable import counted
from shardq.core.model.task import Delivery
from shardq.delivery.batch import Batch
from shardq.delivery.current import CURRENT
from shardq.delivery.functions import check_result
from shardq.delivery.handler import Batching
from shardq.delivery.hooks import Hooks
from shardq.delivery.in_flight import InFlight
from shardq.delivery.isolation import CallThese, Fail, Steps, isolated, parts
from shardq.delivery.job import Job, Lot, call_hooks, settlement_of, settlements_of
from shardq.delivery.logs import log, tell
from shardq.errors import PayloadNotDecodable

EXPECTED = (
    "a handler of batches returns nothing, which says that all are done, or a list with None or an exception for each "
    "delivery"
)

Note = Callable[[Lot, int, float], None]
"""Told of each call of a handler of batches: the lot, how many tasks it was given, and for how many seconds it ran."""


class LotCalls:
    """The calls of one lot, one after the other. ``next`` gives the batch of each, and ``ended`` takes how it ended."""

    def __init__(self, in_flight: InFlight, hooks: Hooks, lot: Lot, note: Note) -> None:
        assert lot.handler.batching is not None, "a lot is of a handler of batches"
        self.lot = lot
        self._in_flight = in_flight
        self._hooks = hooks
        self._note = note
        self._batching: Batching = lot.handler.batching
        self._steps = self._planned(lot.jobs)
        self._raised: BaseException | None = None
        """What the last call raised, if the steps are to say what comes of it."""
        self._called: dict[str, Job] = {}
        """Id → the jobs of the present call."""

    def next(self) -> Batch[Any] | None:
        """The batch of the next call, which begins now. None: the lot has ended, or was ended over its head."""
        try:
            while self.lot.stage == "running":
                step, self._raised = self._steps.send(self._raised), None
                if isinstance(step, Fail):
                    self._fail(step.tasks, step.failure)
                elif (batch := self._begun(step.tasks)) is not None:
                    return batch
        except StopIteration:
            self._in_flight.end_lot(self.lot)
        return None

    def ended(self, failure: BaseException | None, result: object = None) -> None:
        """Takes how the call ended: what it raised, or returned."""
        called, seconds = self._called.values(), time.monotonic() - self.lot.began_at
        self._note(self.lot, len(called), seconds)
        if failure is None and result is not None:
            try:
                self._take(called, result)
            except Exception as exc:  # noqa: BLE001  an object of the user's own
                self._fail(called, exc)
                return
        if failure is None:
            done = self._settle([(job, job.delivery) for job in _open(called)], None)
            if done and not self.lot.handler.is_silent and log.isEnabledFor(logging.INFO):
                self._tell_done(len(called), seconds)
        elif self._batching.isolate and _may_be_one(failure):
            self._raised = failure
        else:
            self._fail(called, failure)

    # ---- verdicts about single deliveries

    def decide(self, delivery: Delivery[Any], failure: BaseException | None) -> bool | None:
        job = self._called.get(delivery.id)
        if job is None or job.delivery.token != delivery.token:
            return None
        if job.stage == "done":
            return False
        settlement = job.delivery if failure is None else settlement_of(job, failure)
        return bool(self._settle([(job, settlement)], failure))

    def lost(self) -> Sequence[Delivery[Any]]:
        return [delivery for delivery in self.lot.lost if delivery.id in self._called]

    # ----

    def _planned(self, jobs: Sequence[Job]) -> Steps[Job]:
        if not self._batching.shrinks:
            yield CallThese(jobs)
            return
        for part in parts(jobs, lambda job: job.delivery.failures, self._batching.size_after):
            if (raised := (yield CallThese(part))) is not None:
                yield from isolated(part, _is_open, raised)

    def _begun(self, jobs: Sequence[Job]) -> Batch[Any] | None:
        """The batch of a call with these jobs; None if nothing of them is left."""
        begun = called = self._in_flight.begin_call(self.lot, jobs)
        if (read := self._batching.read) is None:
            deliveries = [job.delivery for job in begun]
        else:
            deliveries, called = [], []
            for job in begun:
                try:
                    deliveries.append(read(job.delivery))
                    called.append(job)
                except PayloadNotDecodable as exc:
                    self._settle([(job, settlement_of(job, exc))], exc)
        self._called = {job.delivery.id: job for job in called}
        if self._hooks.any_before:
            for job in self._called.values():
                _about(job, self._hooks.before, job.delivery)
        return Batch(deliveries, self) if deliveries else None

    def _settle(self, settled: Sequence[tuple[Job, Settlement]], failure: BaseException | None) -> int:
        """Finishes these jobs, and tells the hooks. Returns how many were not finished before."""
        finished = self._in_flight.finish_all(settled)
        if failure is None and not self._hooks.any_after:
            return len(finished)
        for job, settlement in finished:
            if isinstance(settlement, SettleHold):
                self._in_flight.hold(job.delivery)
            _about(job, call_hooks, self._hooks, job, settlement, failure)
        return len(finished)

    def _fail(self, jobs: Collection[Job], failure: BaseException) -> None:
        """Settles what is left of these as after a call that has raised."""
        if left := _open(jobs):
            self._settle(settlements_of(left, failure), failure)

    def _take(self, called: Collection[Job], result: object) -> None:
        """Takes the list that a handler returned."""
        for job, failure in zip(called, checked_results(result, len(called), self.lot.name), strict=True):
            if failure is not None and job.stage != "done":
                self._settle([(job, settlement_of(job, failure))], failure)

    def _tell_done(self, count: int, seconds: float) -> None:
        topic, name = self.lot.first.topic, self.lot.name
        fields = {"topic": topic, "tasks": count, "seconds": round(seconds, 3)}
        what = "a batch of %s of topic %s is done: %s took %.3f s"
        tell(logging.INFO, what, counted(count, "task"), quoted_topic(topic), name, seconds, extra=fields)


def checked_results(result: object, size: int, name: str) -> list[BaseException | None]:
    """What a handler of batches returned, if it is a list with None or an exception for each delivery of its batch, in
    its order. Raises TypeError for anything else.
    """
    check_result(result, name, "handler")
    if type(result) is not list or len(result) != size:
        shown = f"a list of {len(result)}" if type(result) is list else f"a value of type {type(result).__name__}"
        raise TypeError(f"{name} returned {shown} after a batch of {size}: {EXPECTED}")
    if wrong := [each for each in result if each is not None and not isinstance(each, BaseException)]:
        raise TypeError(f"{name} returned a list with a value of type {type(wrong[0]).__name__} in it: {EXPECTED}")
    return result


def _about(job: Job, call: Callable[..., None], *args: Any) -> None:
    """Calls hooks about one delivery of a batch: it is ``shardq.current()`` for them."""
    token = CURRENT.set(job.delivery)
    call(*args)  # which never raises
    CURRENT.reset(token)


def _is_open(job: Job) -> bool:
    return job.stage != "done"


def _open(jobs: Iterable[Job]) -> list[Job]:
    """Those that have no settlement yet."""
    return [job for job in jobs if job.stage != "done"]


def _may_be_one(failure: BaseException) -> bool:
    """True if one task of a batch may have made the call fail: it was not what the handler decided about all."""
    decided = alone(failure)
    return isinstance(decided, Exception) and not isinstance(decided, Retry | Bury | Snooze)
