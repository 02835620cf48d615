"""What ``stats`` and ``health`` say of a spool's file."""

from __future__ import annotations

import msgspec


class SpoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a spool's file, with what all processes that share it have put there. Counts are None where the file
    can't be read.

    >>> if spool := engine.stats().spool:
    ...     print(spool.waiting, "wait,", spool.failed, "were refused")
    """

    path: str
    engine: str
    """The name of the engine that the file belongs to."""
    waiting: int | None = None
    """Commands that wait for Redis, or for the confirmation of its replicas and its disk."""
    sent: int | None = None
    """Those of them that were sent, and are not confirmed yet."""
    bytes: int | None = None
    """The bytes of these, and of the failed ones, as ``limit`` counts them."""
    limit: int | None = None
    """``spool_bytes`` of this engine; None where a command of the shell looks."""
    oldest: float | None = None
    """Seconds since the first of those that wait was spooled; None without one."""
    replayed: int | None = None
    """Commands that were replayed since the file was made."""
    failed: int | None = None
    """Commands that were refused at their replay, and are kept until they are retried or dropped."""
    problem: str | None = None
    """The reason why this process could not replay commands at its last attempt, or why they are not confirmed."""
    fault: str | None = None
    """The reason why the file takes or gives nothing, so that commands go to Redis only."""
