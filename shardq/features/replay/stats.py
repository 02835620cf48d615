"""The counters of the replay, as ``engine.stats()`` tells them."""

from __future__ import annotations

import msgspec


class ReplayStats(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of an engine with ``replay=``, and what it has sent again.

    >>> if replay := engine.stats().replay:
    ...     print(replay.replays, replay.replayed, replay.late, replay.dropped)
    """

    replays: int
    """Masters whose last writes were looked for on another."""
    replayed: int
    """Tasks that were missing, and were stored again."""
    cancelled: int
    """Cancels that were lost, and were carried out again."""
    late: int
    """Cancels that were lost and could not be carried out again: the task is running."""
    calls: int
    """Calls that are remembered now."""
    bytes: int
    """Bytes that they take."""
    dropped: int
    """Calls forgotten early, because more bytes were not allowed (``replay_bytes=``)."""
    reach: float | None
    """Seconds that the memory went back when a call was last forgotten early; None if none ever was."""
