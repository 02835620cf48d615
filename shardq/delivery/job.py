"""The units of the delivery loop: a ``Job`` is one delivery from its claim to its settlement, and a ``Lot`` the jobs of
a claim that one place of a handler of batches works off. What the end of a handler means for them. No I/O.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from shardq.core.calls.consume import (
    SettleAck,
    SettleBury,
    SettleGiveBack,
    SettleHold,
    SettleRetry,
    SettleSnooze,
)
from shardq.core.consumer.policy import Bury, Hold, Retry, Snooze, alone, reason_of
from shardq.core.consumer.settling import Settlement, noted, settlement_after, worked
from shardq.core.layout.topology import Topology
from shardq.core.model.checks import reason_text
from shardq.core.model.ids import quoted_topic
from shardq.core.model.printable import counted
from shardq.core.model.task import Delivery
from shardq.delivery.handler import Handler, NotBegun, UnknownTask
from shardq.delivery.hooks import Hooks
from shardq.delivery.logs import tell
from shardq.delivery.prefetch import BatchRoom

SHOWN = 5
"""Ids shown in a line of the log."""

Stage = Literal["held", "running", "done"]
"""held: claimed and not begun. done: finished, by its handler or over its head; that happens once."""


class Job(msgspec.Struct, eq=False):
    """A Struct, as there is one for each task. The garbage collector must know it: a payload that keeps an exception of
    its handler refers, by the exception's frames, to the job.
    """

    delivery: Delivery
    handler: Handler
    claimed_at: float = msgspec.field(default_factory=time.monotonic)
    stage: Stage = "held"
    began_at: float = 0.0
    ended_at: float = 0.0
    unknown: str | None = None
    """The name of the function, if it is given back because this worker has none of that name."""
    lot: Lot | None = None
    """The lot that it is of; None: it is called alone."""

    @property
    def waited_s(self) -> float:
        """How long it waited for its handler, once that began."""
        return self.began_at - self.claimed_at

    @property
    def name(self) -> str:
        """The name of its handler, in logs and errors."""
        return self.handler.name(self.delivery)

    @property
    def is_coroutine(self) -> bool:
        return self.handler.is_coroutine(self.delivery)

    @property
    def first(self) -> Delivery:
        """The delivery that it is told by."""
        return self.delivery

    def back(self) -> SettleGiveBack:
        return SettleGiveBack(self.delivery.id, self.delivery.token)

    def retry(self, reason: str) -> SettleRetry:
        """Retries by the handler's backoff. Never raises, whatever that does."""
        delivery, handler = self.delivery, self.handler
        delay_ms = handler.delay_ms(delivery.attempt)
        return SettleRetry(delivery.id, delivery.token, delay_ms, reason_text(reason), handler.max_attempts)

    def noted(self, settlement: Settlement, topology: Topology) -> Settlement:
        """The settlement as it is sent: with this attempt, if it failed; with its end, where that is kept."""
        took_s = self.ended_at - self.began_at if self.began_at else None
        if isinstance(settlement, Delivery):
            return worked(settlement, topology, took_s)
        return settlement if isinstance(settlement, SettleAck) else noted(settlement, self.delivery.past, took_s)


class Lot(msgspec.Struct, eq=False):
    """Jobs that are called together. Its own times and stage are those of its calls: it has one place for all of them,
    and its jobs are settled one by one, each once.
    """

    handler: Handler
    first: Delivery
    room: BatchRoom
    """That of its handler."""
    jobs: list[Job]
    """All of them, until it is done: each refers to it."""
    claimed_at: float = msgspec.field(default_factory=time.monotonic)
    stage: Stage = "held"
    began_at: float = 0.0
    """When its present call began."""
    called: Sequence[Job] = ()
    """The jobs of that. Others wait for a call of theirs, as held ones, also if an earlier call with them has raised.
    """
    lost: list[Delivery] = msgspec.field(default_factory=list)
    """Those whose leases were lost while it ran."""

    @classmethod
    def of(cls, handler: Handler, deliveries: Sequence[Delivery], room: BatchRoom) -> Lot:
        now = time.monotonic()
        lot = cls(handler, deliveries[0], room, [], now)
        lot.jobs = [Job(delivery, handler, now, lot=lot) for delivery in deliveries]
        return lot

    @property
    def name(self) -> str:
        """The name of its handler, in logs and errors."""
        return self.handler.name(self.first)

    @property
    def is_coroutine(self) -> bool:
        return self.handler.is_coroutine(self.first)

    def open(self) -> list[Job]:
        """The jobs that have no settlement yet."""
        return [job for job in self.jobs if job.stage != "done"]


Unit = Job | Lot
"""What is called with one place: a job alone, or a lot."""

Outcome = Literal["done", "retried", "buried", "snoozed"]
"""How a call of a handler ended."""

_OUTCOMES: Mapping[type[Settlement], Outcome] = {
    Delivery: "done",
    SettleRetry: "retried",
    SettleBury: "buried",
    SettleSnooze: "snoozed",
    SettleHold: "snoozed",
}


def outcome_of(settlement: Settlement) -> Outcome | None:
    """How the call ended; None for a task that is given back undone."""
    return _OUTCOMES.get(type(settlement))


def call_hooks(hooks: Hooks, job: Job, settlement: Settlement, failure: BaseException | None) -> None:
    """Calls the hooks after a job's handler. One that has snoozed its task has not failed."""
    if failure is None or isinstance(settlement, SettleSnooze):
        hooks.after(job.delivery)
    else:
        hooks.error(job.delivery, failure)


def settlement_of(job: Job, exc: BaseException) -> Settlement:
    """The settlement after a handler that has raised. Never raises: exceptions and policies are the user's code, and a
    task without a settlement would be held, and its lease extended, for ever.
    """
    task, handler = job.delivery, job.handler
    if type(exc) is NotBegun:
        return job.back()
    # Neither the payload nor the text of the exception.
    fields = {"task_id": task.id, "topic": task.topic, "attempt": task.attempt, "error": type(exc).__name__}
    try:
        decided = alone(exc)
        settlement = settlement_after(task, decided, None, handler.delay_ms, handler.max_attempts)
        if handler.is_silent:
            return settlement
        match decided:
            case Retry():
                tell(logging.INFO, "task %s is tried again: %s", task.id, decided.reason, extra=fields)
            case Bury():
                tell(logging.WARNING, "task %s is buried: %s", task.id, decided.reason, extra=fields)
            case UnknownTask():
                job.unknown = decided.task
                if handler.once.new(str(decided)):
                    what = "task %s has to wait: %s (said once for a name)"
                    tell(logging.ERROR, what, task.id, decided, extra=fields)
            case Hold():
                what, held = "task %s holds its %s for %s", "topic" if task.key is None else "key"
                tell(logging.INFO, what, task.id, held, decided.delay, extra=fields)
            case Snooze():
                tell(logging.DEBUG, "task %s is snoozed: %s", task.id, decided.delay, extra=fields)
            case _:
                tell(logging.ERROR, "task %s failed in attempt %d", task.id, task.attempt, exc=exc, extra=fields)
        return settlement
    except BaseException as fault:  # noqa: BLE001  attributes of the user's own exception, SystemExit too
        tell(logging.ERROR, "task %s failed with an exception that can't be read", task.id, exc=fault, extra=fields)
        return job.retry(reason_of(exc))


def settlements_of(jobs: Sequence[Job], exc: BaseException) -> list[tuple[Job, Settlement]]:
    """The same after a call with many tasks: with one line of the log, one text of the exception, and one delay for all
    that have failed as often, so that they come back together. Never raises.
    """
    if type(exc) is NotBegun:
        return [(job, job.back()) for job in jobs]
    handler, first, ids = jobs[0].handler, jobs[0].delivery, [job.delivery.id for job in jobs]
    fields = {"task_ids": ids[:SHOWN], "tasks": len(ids), "topic": first.topic, "error": type(exc).__name__}
    shown = ", ".join(ids[:SHOWN]) + (", …" if len(ids) > SHOWN else "")
    tasks, topic = counted(len(ids), "task"), quoted_topic(first.topic)
    try:
        decided = alone(exc)
        model = settlement_after(first, decided, None, handler.delay_ms, handler.max_attempts)
        by_backoff = isinstance(model, SettleRetry) and (not isinstance(decided, Retry) or decided.delay is None)
        match decided:
            case Retry():
                tell(logging.INFO, "%s of topic %s are tried again: %s", tasks, topic, decided.reason, extra=fields)
            case Bury():
                tell(logging.WARNING, "%s of topic %s are buried: %s", tasks, topic, decided.reason, extra=fields)
            case Hold():
                tell(logging.INFO, "%s of topic %s are held for %s", tasks, topic, decided.delay, extra=fields)
            case Snooze():
                tell(logging.DEBUG, "%s of topic %s are snoozed: %s", tasks, topic, decided.delay, extra=fields)
            case _:
                tell(logging.ERROR, "%s of topic %s failed: %s", tasks, topic, shown, exc=exc, extra=fields)
    except BaseException as fault:  # noqa: BLE001  attributes of the user's own exception, SystemExit too
        what = "%s of topic %s failed with an exception that can't be read"
        tell(logging.ERROR, what, tasks, topic, exc=fault, extra=fields)
        model = jobs[0].retry(reason_of(exc))
        by_backoff = True
    if by_backoff and isinstance(model, SettleRetry):
        return retries(jobs, model.reason)
    return [(job, msgspec.structs.replace(model, id=job.delivery.id, token=job.delivery.token)) for job in jobs]


def retries(jobs: Sequence[Job], reason: str) -> list[tuple[Job, Settlement]]:
    """Retries by their handler's backoff: with one delay for all that have failed as often."""
    delays: dict[int, int] = {}
    found: list[tuple[Job, Settlement]] = []
    text = reason_text(reason)
    for job in jobs:
        task = job.delivery
        if task.attempt not in delays:
            delays[task.attempt] = job.handler.delay_ms(task.attempt)
        retry = SettleRetry(task.id, task.token, delays[task.attempt], text, job.handler.max_attempts)
        found.append((job, retry))
    return found
