"""From how a handler ended to what is settled. Used by hands and strands alike, and by who ends what is overdue.

Nothing here raises: exceptions and policies are the user's code, and a task whose verdict can't be made would be held,
and its lease extended, for ever.
"""

from __future__ import annotations

import logging

from shardq.worker.hooks import Hooks
from shardq.worker.job import Job, Verdict
from shardq.worker.logs import tell
from shardq.worker.policy import Bury, Retry, reason_of
from shardq.worker.table import Table


def conclude(table: Table, hooks: Hooks, job: Job, failure: BaseException | None) -> None:
    """Gives the verdict of a handler that ended, unless there is one, and calls the hooks. None: it returned."""
    if table.judge(job, job.ack if failure is None else verdict_of(job, failure)):
        if failure is None:
            hooks.after(job.delivery)
        else:
            hooks.error(job.delivery, failure)


def verdict_of(job: Job, exc: BaseException) -> Verdict:
    try:
        return _verdict(job, exc)
    except BaseException as fault:  # noqa: BLE001  attributes of the user's own exception, SystemExit too
        tell(logging.ERROR, "task %s failed with an exception that can't be read", job.delivery.id, exc=fault)
        return job.retry(None, reason_of(exc))


def _verdict(job: Job, exc: BaseException) -> Verdict:
    match _alone(exc):
        case Retry() as decided:
            verdict: Verdict = job.retry(decided.delay, decided.reason)
            tell(logging.INFO, "task %s is tried again: %s", job.delivery.id, decided.reason)
        case Bury() as decided:
            verdict = job.bury(decided.reason)
            tell(logging.WARNING, "task %s is buried: %s", job.delivery.id, decided.reason)
        case _:
            verdict = job.retry(None, reason_of(exc))
            tell(logging.ERROR, "task %s failed in attempt %d", job.delivery.id, job.delivery.attempt, exc=exc)
    return verdict


def _alone(exc: BaseException) -> BaseException:
    """The exception in a group that has no other: asyncio.TaskGroup makes one of whatever a task of it raises."""
    while isinstance(exc, BaseExceptionGroup) and len(exc.exceptions) == 1:
        exc = exc.exceptions[0]
    return exc
