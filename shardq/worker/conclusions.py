"""Concludes a job: from the end of its handler to its settlement. Used by both runners, and by whoever ends what is
overdue.

Nothing here raises: exceptions and policies are the user's code, and a task without a settlement would be held, and its
lease extended, for ever.
"""

from __future__ import annotations

import logging

from shardq.core.calls.consume import SettleSnooze
from shardq.core.consumer.policy import Bury, Retry, Snooze, alone, reason_of
from shardq.worker.hooks import Hooks
from shardq.worker.in_flight import InFlight
from shardq.worker.job import Job, Settlement
from shardq.worker.logs import tell
from shardq.worker.named import UnknownTask


def conclude(in_flight: InFlight, hooks: Hooks, job: Job, failure: BaseException | None) -> None:
    """Settles the job of a handler that ended, unless it is settled already, and calls the hooks. None: it returned."""
    if failure is None:  # without a call more: this is done for each task
        if in_flight.finish(job, job.ack):
            hooks.after(job.delivery)
        return
    settlement = settlement_of(job, failure)
    if in_flight.finish(job, settlement):
        call_hooks(hooks, job, settlement, failure)


def call_hooks(hooks: Hooks, job: Job, settlement: Settlement, failure: BaseException | None) -> None:
    """Calls the hooks after a job's handler. One that has snoozed its task has not failed."""
    if failure is None or isinstance(settlement, SettleSnooze):
        hooks.after(job.delivery)
    else:
        hooks.error(job.delivery, failure)


def settlement_of(job: Job, exc: BaseException) -> Settlement:
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
