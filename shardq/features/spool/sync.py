"""The waits of an engine for threads on the spool's file. The twin for asyncio is ``aio``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardq.errors import ShardqError
    from shardq.features.spool.commands import Command
    from shardq.features.spool.spool import Spool
    from shardq.features.spool.stats import SpoolStats


def add(spool: Spool, commands: Sequence[Command], *, lost: ShardqError | None = None) -> bool:
    """Stores commands, see ``Spool.add``."""
    return spool.add(commands, lost=lost)


def stats(spool: Spool | None) -> SpoolStats | None:
    """The gauge of the engine's spool, if it has one."""
    return None if spool is None else spool.stats()
