"""From how a handler ended to what is settled. Used by hands and strands alike."""

from __future__ import annotations

import logging

from shardq.worker.job import Job, Verdict
from shardq.worker.policy import Bury, Retry, reason_of

log = logging.getLogger("shardq.worker")


def verdict_of(job: Job, exc: BaseException | None) -> Verdict:
    """None: it returned."""
    match exc:
        case None:
            return job.ack
        case Retry():
            log.info("task %s is tried again: %s", job.delivery.id, exc.reason)
            return job.retry(exc.delay, exc.reason)
        case Bury():
            log.warning("task %s is buried: %s", job.delivery.id, exc.reason)
            return job.bury(exc.reason)
        case _:
            log.error("task %s failed in attempt %d", job.delivery.id, job.delivery.attempt, exc_info=exc)
            return job.retry(None, reason_of(exc))
