"""One delivery in a worker, the ways to settle it, and the settlement that the end of its handler means."""

from __future__ import annotations

import datetime as dt
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from shardq.core.calls.consume import OtherSettlement, SettleBury, SettleGiveBack, SettleRetry, SettleSnooze
from shardq.core.consumer import policy
from shardq.core.consumer.policy import Bury, Retry, Snooze, alone, reason_of
from shardq.core.consumer.settling import SettlementsByShard
from shardq.core.model.checks import due_spec, reason_text
from shardq.core.model.task import Delivery
from shardq.worker.handlers import Handler, Hooks, UnknownTask
from shardq.worker.logs import tell

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
    def ack(self) -> Delivery:
        """The delivery itself, which names the lease."""
        return self.delivery

    def back(self) -> SettleGiveBack:
        return SettleGiveBack(self.delivery.id, self.delivery.token)

    def bury(self, reason: str) -> SettleBury:
        return SettleBury(self.delivery.id, self.delivery.token, reason_text(reason))

    def retry(self, delay: float | None, reason: str) -> SettleRetry:
        """Retries after ``delay``; None: by the handler's backoff, and then never an error, whatever that does."""
        delivery, handler = self.delivery, self.handler
        delay_ms = handler.delay_ms(delivery.attempt) if delay is None else -due_spec(delay, None)
        return SettleRetry(delivery.id, delivery.token, delay_ms, reason_text(reason), handler.max_attempts)

    def snooze(self, delay: float | dt.timedelta) -> SettleSnooze:
        return SettleSnooze(self.delivery.id, self.delivery.token, policy.snooze_ms(delay))


Settlement = Delivery | OtherSettlement

Outcome = Literal["done", "retried", "buried", "snoozed"]
"""How a call of a handler ended."""

_OUTCOMES: Mapping[type[Settlement], Outcome] = {
    Delivery: "done",
    SettleRetry: "retried",
    SettleBury: "buried",
    SettleSnooze: "snoozed",
}


def outcome_of(settlement: Settlement) -> Outcome | None:
    """How the call ended; None for a task that is given back undone."""
    return _OUTCOMES.get(type(settlement))


def settlements_by_shard(ended: Iterable[tuple[Job, Settlement]]) -> SettlementsByShard:
    by_shard: dict[int, tuple[list[Delivery], list[OtherSettlement]]] = {}
    for job, settlement in ended:
        acks, others = by_shard.setdefault(job.delivery.shard, ([], []))
        if isinstance(settlement, Delivery):
            acks.append(settlement)
        else:
            others.append(settlement)
    return by_shard


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
    try:
        return _settlement(job, exc)
    except BaseException as fault:  # noqa: BLE001  attributes of the user's own exception, SystemExit too
        what = "task %s failed with an exception that can't be read"
        tell(logging.ERROR, what, job.delivery.id, exc=fault, extra=_fields(job, exc))
        return job.retry(None, reason_of(exc))


def _settlement(job: Job, exc: BaseException) -> Settlement:
    match alone(exc):
        case Retry() as decided:
            settlement: Settlement = job.retry(decided.delay, decided.reason)
            tell(logging.INFO, "task %s is tried again: %s", job.delivery.id, decided.reason, extra=_fields(job, exc))
        case Bury() as decided:
            settlement = job.bury(decided.reason)
            tell(logging.WARNING, "task %s is buried: %s", job.delivery.id, decided.reason, extra=_fields(job, exc))
        case UnknownTask() as decided:
            settlement = job.snooze(decided.delay)
            job.unknown = decided.task
            if job.handler.once.new(str(decided)):
                what = "task %s has to wait: %s (said once for a name)"
                tell(logging.ERROR, what, job.delivery.id, decided, extra=_fields(job, exc))
        case Snooze() as decided:
            settlement = job.snooze(decided.delay)
            tell(logging.DEBUG, "task %s is snoozed: %s", job.delivery.id, decided.delay, extra=_fields(job, exc))
        case _:
            settlement = job.retry(None, reason_of(exc))
            id, attempt = job.delivery.id, job.delivery.attempt
            tell(logging.ERROR, "task %s failed in attempt %d", id, attempt, exc=exc, extra=_fields(job, exc))
    return settlement


def _fields(job: Job, exc: BaseException) -> dict[str, object]:
    """The fields of the log for a task that failed. The payload is in none, nor is the text of the exception."""
    task = job.delivery
    return {"task_id": task.id, "topic": task.topic, "attempt": task.attempt, "error": type(exc).__name__}
