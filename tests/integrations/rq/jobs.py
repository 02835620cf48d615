"""What the jobs of these tests do, in a worker of RQ."""

from __future__ import annotations

from rq import get_current_job

RAN = "ran"


def note(*words: str) -> None:
    """Appends the job's id to a list."""
    job = get_current_job()
    assert job is not None
    job.connection.rpush(RAN, job.id)


def fail() -> None:
    note()
    raise RuntimeError("as wanted")
