"""The gauge of a spool, as ``engine.stats()`` and ``shardq spool status`` tell it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec


class SpoolStats(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a spool's file, with what all processes that share it have put there.

    >>> if spool := engine.stats().spool:
    ...     print(spool.waiting, "wait,", spool.failed, "were refused")
    """

    path: str
    engine: str
    """The name of the engine that the file belongs to."""
    waiting: int
    """Commands that wait for Redis."""
    bytes: int
    """The bytes of these, and of the failed ones, as ``limit`` counts them."""
    limit: int | None
    """``spool_bytes`` of this engine; None where a command of the shell looks."""
    oldest: float | None
    """Seconds since the first of those that wait was spooled; None without one."""
    replayed: int
    """Commands that were replayed since the file was made."""
    failed: int
    """Commands that were refused at their replay, and are kept until somebody retries or drops them."""
    problem: str | None = None
    """The reason why this process could not replay commands at its last attempt, or read the file."""


def problems(stats: SpoolStats) -> Iterator[str]:
    """A sentence for each thing that somebody should look after."""
    if stats.problem:
        waits = f", the oldest for {stats.oldest:,.0f} s" if stats.oldest is not None else ""
        yield f"{stats.waiting:,} commands wait in the spool {stats.path}{waits}: {stats.problem}"
    if stats.failed:
        yield (
            f"{stats.failed:,} commands of the spool {stats.path} were refused: `shardq spool failed {stats.path}` "
            "lists them, and retries or drops them"
        )
